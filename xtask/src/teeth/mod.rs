//! `cargo xtask teeth`: breaks promises on purpose, one at a time, and sees a test fail for each.
//!
//! | module | contents |
//! |---|---|
//! | `breaks` | the list of breaks, `xtask/teeth/*.toml` |
//! | `tree` | a throw-away worktree of the current commit, where they are made and tests are run |

mod breaks;
mod tree;

use anyhow::{Result, ensure};
use breaks::Break;
use std::collections::BTreeSet;
use std::time::Instant;
use tree::{Outcome, Tree};

#[derive(clap::Args)]
pub(crate) struct Teeth {
    /// Print the breaks, and which rules of SEMANTICS.md have none
    #[arg(long)]
    list: bool,
    /// Only the breaks with one of these words in their names or their files
    words: Vec<String>,
}

impl Teeth {
    pub(crate) fn run(&self) -> Result<()> {
        let mut breaks = breaks::all()?;
        if self.list {
            return list(&breaks);
        }
        let wanted =
            |it: &Break| self.words.iter().any(|word| it.name.contains(word) || it.file.contains(word));
        breaks.retain(|it| self.words.is_empty() || wanted(it));
        ensure!(!breaks.is_empty(), "no break has {} in its name or file", self.words.join(" or "));
        let tree = Tree::new()?;
        unbroken(&tree, &breaks)?;
        println!("\n== {} breaks, at {}", breaks.len(), tree.commit);
        println!("{:<62} {:>4}  {:<8} {:>6}  test", "break", "rule", "", "s");
        let mut escaped = Vec::new();
        for it in &breaks {
            let begun = Instant::now();
            let outcome = tree.broken(it)?;
            let seconds = begun.elapsed().as_secs();
            println!(
                "{:<62} {:>4}  {:<8} {seconds:>6}  {}",
                it.name,
                it.rule,
                outcome.word(),
                it.test_name()
            );
            if outcome != Outcome::Caught {
                escaped.push(it.name.as_str());
            }
        }
        ensure!(escaped.is_empty(), "no test fails with: {}", escaped.join(", "));
        println!("\nall {} breaks are caught", breaks.len());
        Ok(())
    }
}

/// A test that fails anyway says nothing, nor does one that is not there.
fn unbroken(tree: &Tree, breaks: &[Break]) -> Result<()> {
    let tests: BTreeSet<&str> = breaks.iter().map(|it| it.test.as_str()).collect();
    println!("\n== {} tests without a break, at {}", tests.len(), tree.commit);
    for test in tests {
        let begun = Instant::now();
        let outcome = tree.test(test)?;
        ensure!(outcome == Outcome::Passed, "without a break, `cargo test {test}` {}", outcome.word());
        println!("{:>4} s  {test}", begun.elapsed().as_secs());
    }
    Ok(())
}

fn list(breaks: &[Break]) -> Result<()> {
    for it in breaks {
        println!("{:>4}  {:<62} {}", it.rule, it.name, it.file);
    }
    let broken: BTreeSet<usize> = breaks.iter().map(|it| it.rule).collect();
    let without = (1..=breaks::rules()?.len()).filter(|rule| !broken.contains(rule));
    let without: Vec<_> = without.map(|rule| rule.to_string()).collect();
    println!("\n{} breaks. Rules without one: {}", breaks.len(), without.join(", "));
    Ok(())
}
