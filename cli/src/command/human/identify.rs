//! What the bits of Identify Controller's and Identify Namespace's fields mean: `identify.txt`.

use super::{FREEZING_KELVIN, hex, part_of};

const MEANINGS: &str = include_str!("identify.txt");

/// The lines that explain a field's value; none, of a field that needs no explanation.
pub(in crate::command) fn explain(name: &str, value: u64) -> Vec<String> {
    let mut lines =
        MEANINGS.lines().skip_while(|line| line.split_once(' ').is_none_or(|(field, _)| field != name));
    let bits = lines.next().and_then(|line| line.split_once(' ')?.1.parse().ok());
    let Some(mut next): Option<u8> = bits else { return Vec::new() };
    let mut explained = Vec::new();
    let reserved = |explained: &mut Vec<String>, next: u8, low: u8| {
        if let Some(high) = next.checked_sub(1).filter(|high| *high >= low) {
            let bits = part_of(value, high, low);
            explained.extend((bits != 0).then(|| format!("  [{high}:{low}] : {bits:#x}\tReserved")));
        }
    };
    for (high, low, meaning, text) in lines.take_while(|line| !line.is_empty()).filter_map(part) {
        reserved(&mut explained, next, high + 1);
        explained.push(format!("  [{high}:{low}] : {}", says(meaning, text, part_of(value, high, low))));
        next = low;
    }
    reserved(&mut explained, next, 0);
    explained
}

/// The highest bit, the lowest, the kind of their meaning, and the rest.
fn part(line: &str) -> Option<(u8, u8, &str, &str)> {
    let mut words = line.splitn(3, ' ');
    let (bits, meaning, text) = (words.next()?, words.next()?, words.next()?);
    let (high, low) = bits.split_once(':')?;
    Some((high.parse().ok()?, low.parse().ok()?, meaning, text))
}

fn says(meaning: &str, text: &str, bits: u64) -> String {
    let shown = hex(bits);
    match meaning {
        "+" if bits != 0 => format!("{shown}\t{text} Supported"),
        "+" => format!("{shown}\t{text} Not Supported"),
        "=" => {
            let text = usize::try_from(bits).ok().and_then(|at| text.split(" | ").nth(at));
            format!("{shown}\t{}", text.unwrap_or("Reserved"))
        }
        "0" => format!("{bits} (0's based)\t{text}"),
        "^" => format!("{shown}\t{text} ({})", 1_u64 << bits.min(63)),
        "K" => format!("{} °C ({bits} K)\t{text}", i128::from(bits) - FREEZING_KELVIN),
        _ => format!("{shown}\t{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_explained_from_the_highest_down() {
        assert_eq!(
            explain("frmw", 0xdb),
            [
                "  [7:6] : 0x3\tReserved",
                "  [5:5] : 0\tMultiple FW or Boot Update Detection Not Supported",
                "  [4:4] : 0x1\tFirmware Activate Without Reset Supported",
                "  [3:1] : 0x5\tNumber of Firmware Slots",
                "  [0:0] : 0x1\tFirmware Slot 1 Read-Only",
            ]
        );
        assert_eq!(explain("sqes", 0x66)[0], "  [7:4] : 0x6\tMax SQ Entry Size (64)");
        assert_eq!(
            explain("wctemp", 343),
            ["  [15:0] : 70 °C (343 K)\tWarning Composite Temperature Threshold (WCTEMP)"]
        );
        assert_eq!(explain("vwc", 7)[0], "  [2:1] : 0x3\tThe Flush command supports NSID set to FFFFFFFFh");
        assert!(explain("mdts", 5).is_empty() && explain("7:4", 5).is_empty());
    }

    #[test]
    fn every_line_of_the_table_is_understood() {
        let mut bits = 0;
        for line in MEANINGS.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            match part(line) {
                Some((high, low, meaning, text)) => {
                    assert!(
                        high < bits && low <= high && "+=#0^K".contains(meaning) && !text.is_empty(),
                        "{line}"
                    );
                    bits = low;
                }
                None => bits = line.split_once(' ').and_then(|(_, bits)| bits.parse().ok()).expect(line),
            }
        }
    }
}
