//! What the bits of a value mean, as nvme-cli says it with `-H`.
//!
//! | file | what it explains |
//! |---|---|
//! | `identify` | the fields of Identify Controller and Identify Namespace |
//! | `features` | the values of features |
//! | `registers` | the properties of a controller |

pub(super) mod features;
pub(super) mod identify;
pub(super) mod registers;

/// 0 °C, as nvme-cli rounds it.
pub(super) const FREEZING_KELVIN: i128 = 273;

/// Some bits of a value: from the highest to the lowest.
fn part_of(value: u64, high: u8, low: u8) -> u64 {
    value >> low & (u64::MAX >> (63 - (high - low)))
}

/// As C prints it with `%#x`: 0 has no prefix.
pub(super) fn hex(number: u64) -> String {
    if number == 0 { "0".to_owned() } else { format!("{number:#x}") }
}
