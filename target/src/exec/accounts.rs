//! Accounts by name: machines, hosts, associations. Found in one step by name or by number.

use core::hash::Hash;
use std::collections::HashMap;

/// What is kept for those who have queues. Each has a number until its last queue is gone; then nothing of it is left.
#[derive(Debug)]
pub struct Accounts<K, V> {
    numbers: HashMap<K, u32>,
    accounts: Vec<Account<K, V>>,
    /// Numbers that nobody has.
    vacant: Vec<u32>,
}

#[derive(Debug)]
struct Account<K, V> {
    name: K,
    queues: u32,
    value: V,
}

impl<K, V> Default for Accounts<K, V> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), accounts: Vec::new(), vacant: Vec::new() }
    }
}

impl<K: Clone + Eq + Hash, V: Default> Accounts<K, V> {
    /// One more queue of this name. Returns the number of its account, which begins empty.
    pub fn add(&mut self, name: &K) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            self.accounts[number as usize].queues += 1;
            return number;
        }
        let account = Account { name: name.clone(), queues: 1, value: V::default() };
        let number = match self.vacant.pop() {
            Some(number) => {
                self.accounts[number as usize] = account;
                number
            }
            None => {
                self.accounts.push(account);
                u32::try_from(self.accounts.len() - 1).expect("no more accounts than queues")
            }
        };
        self.numbers.insert(name.clone(), number);
        number
    }

    /// A queue of that account is gone.
    pub fn remove(&mut self, number: u32) {
        let account = &mut self.accounts[number as usize];
        account.queues -= 1;
        if account.queues == 0 {
            self.numbers.remove(&account.name);
            self.vacant.push(number);
        }
    }

    /// The number of the account of that name, if it has queues.
    #[must_use]
    pub fn find(&self, name: &K) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// What is kept at that number.
    #[must_use]
    pub fn get(&self, number: u32) -> &V {
        &self.accounts[number as usize].value
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, number: u32) -> &mut V {
        &mut self.accounts[number as usize].value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_forgotten_with_their_last_queue() {
        let mut accounts = Accounts::<u16, u32>::default();
        for name in 0..1000 {
            let number = accounts.add(&name);
            assert_eq!((accounts.add(&name), *accounts.get(number)), (number, 0));
            *accounts.get_mut(number) = 7;
            accounts.remove(number);
            assert_eq!(accounts.find(&name), Some(number));
            accounts.remove(number);
            assert_eq!(accounts.find(&name), None);
        }
        assert_eq!((accounts.numbers.len(), accounts.accounts.len()), (0, 1), "one was there at a time");
    }
}
