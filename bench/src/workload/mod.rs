//! Generation of operations: direction, offset, length. The same options and seed give the same operations.
//!
//! | module | contents |
//! |---|---|
//! | `permutation` | a random order of all blocks |
//! | `zipf` | Zipf-distributed blocks |
//! | `pace` | rate limits |
//! | `random` | random numbers |

mod pace;
mod permutation;
mod random;
#[cfg(test)]
mod tests;
mod zipf;

pub use pace::Pace;
pub use permutation::Permutation;
pub use random::{Random, mix};
pub use zipf::Zipf;

use crate::job::{BlockSize, Distribution, JobOptions};
use crate::result::Direction;

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Read, write or trim.
    pub direction: Direction,
    /// Start, in bytes from the start of the device.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// The part of a device that a job uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Generates the operations of a thread. Iterating does not allocate.
#[derive(Debug, Clone)]
pub struct Generator {
    random_offsets: bool,
    directions: [bool; 3],
    read_percent: u64,
    sizes: [BlockSize; 3],
    region: Region,
    /// Bytes of which all offsets and lengths are multiples.
    unit: u64,
    units: u64,
    order: Order,
    /// By direction: start of the next sequential operation, relative to the region.
    next: [u64; 3],
    /// Bytes still to generate; `None` for endless.
    left: Option<u64>,
    random: Random,
    after_trim: Option<Operation>,
}

/// Order of random offsets.
#[derive(Debug, Clone)]
enum Order {
    /// Every unit once, then again in another order.
    EachOnce { seed: u64, round: u64, place: u64, permutation: Permutation },
    /// Independent offsets.
    Any,
    /// Zipf-distributed ranks, permuted over the region.
    Zipf { law: Zipf, scatter: Permutation },
}

impl Generator {
    /// The generator for thread `stream` on `region`; `None` if no block fits into the region.
    #[must_use]
    pub fn new(options: &JobOptions, region: Region, stream: u64) -> Option<Self> {
        let unit = u64::from(options.bs_least());
        let units = region.len.checked_div(unit).filter(|&units| units > 0)?;
        let region = Region { len: units * unit, ..region };
        let mut random = Random::new(options.seed(), stream);
        let seed = random.next_u64();
        let one_size = options.bs_most() == options.bs_least();
        let order = match options.random_distribution {
            Distribution::Zipf(theta) => {
                Order::Zipf { law: Zipf::new(units, theta), scatter: Permutation::new(units, seed) }
            }
            // With several block sizes, a permutation of units would make blocks overlap.
            Distribution::Uniform if options.norandommap || !one_size => Order::Any,
            Distribution::Uniform => {
                Order::EachOnce { seed, round: 0, place: 0, permutation: Permutation::new(units, seed) }
            }
        };
        let size = options.io_size.map_or(region.len, |size| size.of(region.len));
        let left = (!options.time_based).then(|| size.saturating_mul(options.loops.into()));
        Some(Self {
            random_offsets: options.rw.random,
            directions: Direction::ALL.map(|direction| options.rw.has(direction)),
            read_percent: options.rwmixread.into(),
            sizes: options.bs.clone(),
            region,
            unit,
            units,
            order,
            next: [0; 3],
            left,
            random,
            after_trim: None,
        })
    }

    /// The region that is used: whole blocks of the smallest size.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// Leaves out so many operations of this length.
    pub fn leave_out(&mut self, len: u32, operations: u64) {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(u64::from(len).saturating_mul(operations));
        }
    }

    fn direction(&mut self) -> Direction {
        match self.directions {
            [_, _, true] => Direction::Trim,
            [true, true, _] if self.random.below(100) >= self.read_percent => Direction::Write,
            [true, _, _] => Direction::Read,
            _ => Direction::Write,
        }
    }

    /// Start of the next operation, relative to the region.
    fn start(&mut self, direction: Direction) -> u64 {
        if !self.random_offsets {
            return self.next[direction as usize];
        }
        let unit = match &mut self.order {
            Order::Any => self.random.below(self.units),
            Order::Zipf { law, scatter } => scatter.at(law.next(&mut self.random)),
            Order::EachOnce { seed, round, place, permutation } => {
                if *place == self.units {
                    *round += 1;
                    *place = 0;
                    *permutation = Permutation::new(self.units, *seed ^ mix(*round));
                }
                *place += 1;
                permutation.at(*place - 1)
            }
        };
        unit * self.unit
    }

    fn len(&mut self, direction: Direction) -> u64 {
        let len = match &self.sizes[direction as usize] {
            BlockSize::Fixed(size) => return (*size).into(),
            BlockSize::Range(least, most) => {
                u64::from(*least) + self.random.below(u64::from(most - least) + 1)
            }
            BlockSize::Split(parts) => {
                let draw = self.random.below(100);
                parts.iter().find(|(_, upto)| draw < u64::from(*upto)).map_or(self.unit, |part| part.0.into())
            }
        };
        (len / self.unit).max(1) * self.unit
    }
}

/// Yields operations until `io_size` and `loops` are reached.
impl Iterator for Generator {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        if let Some(write) = self.after_trim.take() {
            return Some(write);
        }
        if self.left.is_some_and(|left| left < self.unit) {
            return None;
        }
        let direction = self.direction();
        let start = self.start(direction);
        let most = (self.region.len - start).min(self.left.unwrap_or(u64::MAX));
        // A multiple of the unit; at least one unit fits.
        let len = self.len(direction).min(most / self.unit * self.unit);
        self.next[direction as usize] = if start + len >= self.region.len { 0 } else { start + len };
        if let Some(left) = &mut self.left {
            *left -= len;
        }
        let operation = Operation {
            direction,
            offset: self.region.offset + start,
            len: u32::try_from(len).expect("no longer than the longest block"),
        };
        if direction == Direction::Trim && self.directions[Direction::Write as usize] {
            self.after_trim = Some(Operation { direction: Direction::Write, ..operation });
        }
        Some(operation)
    }
}
