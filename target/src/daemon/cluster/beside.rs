//! Clients that have an image open which hosts are to get, and are no gateway of the group: a virtual machine, say, whose disk it
//! is. Nobody fences them, and two that write one image destroy what is on it.

use super::Membership;
use nvmf_backend::{Disk, Opener};
use nvmf_config::Rbd;
use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// For so long gateways may still be closing what was just removed.
const CLOSED_WITHIN: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Clients that are named.
const NAMED_MAX: usize = 3;

impl Membership {
    /// The addresses of the group's clients that do the I/O of ANA groups, as far as they are known here.
    pub(super) fn addresses_of_group(&self) -> BTreeSet<String> {
        let status = self.driver.status();
        let groups = status.into_iter().flat_map(|status| status.groups.into_values());
        groups.filter_map(|group| Some(group.address?.0)).collect()
    }
}

/// What an operator is told of an image that others have open who are not `ours`. Blocks, for some seconds if there are any.
pub(super) fn others_at(disk: &Disk, image: &Rbd, ours: &BTreeSet<String>) -> Option<String> {
    let until = Instant::now() + CLOSED_WITHIN;
    loop {
        // Who could open it and cannot ask this is told nothing.
        let mut others = disk.other_openers().unwrap_or_default();
        others.retain(|it| !ours.contains(&it.address));
        if others.is_empty() || Instant::now() >= until {
            return told(&others, image);
        }
        sleep(LOOK_AGAIN);
    }
}

fn told(others: &[Opener], image: &Rbd) -> Option<String> {
    let writes = |it: &Opener| if it.has_lock { " (it holds the exclusive lock: it writes)" } else { "" };
    let mut named: Vec<String> = others.iter().map(|it| format!("{}{}", it.address, writes(it))).collect();
    if let Some(more) = named.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        named.truncate(NAMED_MAX);
        named.push(format!("{more} more"));
    }
    let who = match others {
        [] => return None,
        [_] => {
            format!("a client that is no gateway of this group has the image open: {}", named.join(" and "))
        }
        _ => {
            format!("clients that are no gateways of this group have the image open: {}", named.join(" and "))
        }
    };
    let name = image.to_string();
    let name = name.strip_prefix(Rbd::PREFIX).unwrap_or(&name);
    Some(format!(
        "{who}. If it and hosts write, what is on the image is destroyed: end it (a virtual machine, a mapped device, another \
         target; `rbd status {name}` lists them), or remove the namespace"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_beside_the_group_is_named_with_whether_it_writes() {
        let image: Rbd = "nvmf/vm1".parse().unwrap();
        let of = |n: u32, has_lock| Opener { address: format!("192.0.2.{n}:0/7"), has_lock };
        assert_eq!(told(&[], &image), None);
        let one = told(&[of(1, true)], &image).unwrap();
        let start = "a client that is no gateway of this group has the image open: 192.0.2.1:0/7 (it holds the exclusive lock: it \
                     writes). ";
        assert!(one.starts_with(start) && one.contains("`rbd status nvmf/vm1`"), "{one}");
        let five: Vec<Opener> = (1..=5).map(|n| of(n, false)).collect();
        let five = told(&five, &image).unwrap();
        assert!(five.contains("192.0.2.1:0/7 and 192.0.2.2:0/7 and 192.0.2.3:0/7 and 2 more. "), "{five}");
    }
}
