//! Scales and ticks of an axis.

/// Scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Linear, from 0.
    Linear,
    /// Logarithmic; values below the axis, such as 0, are placed at its start.
    Log,
}

/// Description of an axis of a chart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    /// Label, with the unit if the ticks have none.
    pub(super) name: &'static str,
    pub(super) scale: Scale,
    /// Formats a value with its unit.
    pub(super) text: fn(f64) -> String,
}

/// An axis fitted to values.
#[derive(Debug)]
pub(super) struct Fitted {
    scale: Scale,
    low: f64,
    high: f64,
    pub(super) ticks: Vec<f64>,
}

impl Axis {
    /// Fits the axis to the values; with `to_the_end` it ends at the last value, not at a tick.
    pub(super) fn fit(&self, values: impl Iterator<Item = f64> + Clone, to_the_end: bool) -> Fitted {
        let greatest = values.clone().fold(0.0, f64::max);
        match self.scale {
            Scale::Linear => linear(greatest, to_the_end),
            Scale::Log => {
                log(values.filter(|value| *value >= 1.0).fold(f64::INFINITY, f64::min), greatest, to_the_end)
            }
        }
    }
}

impl Fitted {
    /// The position of a value, from 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        let position = match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(1.0).log10(),
        };
        ((position - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// The value at a position.
    pub(super) fn value(&self, place: f64) -> f64 {
        let position = self.low + place * (self.high - self.low);
        match self.scale {
            Scale::Linear => position,
            Scale::Log => 10_f64.powf(position),
        }
    }
}

fn linear(greatest: f64, to_the_end: bool) -> Fitted {
    let greatest = if greatest > 0.0 { greatest } else { 1.0 };
    // Four to eight ticks, with steps of 1, 2 or 5 times a power of ten.
    let magnitude = 10_f64.powf((greatest / 4.0).log10().floor());
    let step = [5.0, 2.0, 1.0].map(|factor| factor * magnitude);
    let step = step.into_iter().find(|step| greatest / step >= 4.0).unwrap_or(magnitude);
    let steps = if to_the_end { (greatest / step + 1e-9).floor() } else { (greatest / step - 1e-9).ceil() };
    let ticks = (0..=steps as u32).map(|i| f64::from(i) * step).collect();
    let high = if to_the_end { greatest } else { steps * step };
    Fitted { scale: Scale::Linear, low: 0.0, high, ticks }
}

fn log(least: f64, greatest: f64, to_the_end: bool) -> Fitted {
    let (least, greatest) = (least.clamp(1.0, greatest.max(1.0)), greatest.max(1.0));
    // A short axis has ticks, and its ends, at 1, 2 and 5 times powers of ten; a long one at the powers only.
    let factors: &[f64] = if greatest / least < 100.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all: Vec<f64> =
        (0..=13).flat_map(|power| factors.iter().map(move |f| f * 10_f64.powi(power))).collect();
    let first = all.partition_point(|&tick| tick <= least * 1.000_001).saturating_sub(1);
    let last = all.partition_point(|&tick| tick < greatest * 0.999_999).max(first + 1).min(all.len() - 1);
    let ticks = all[first..=last].to_vec();
    if to_the_end && greatest > least {
        let within = ticks.into_iter().filter(|tick| (least..=greatest).contains(tick)).collect();
        return Fitted { scale: Scale::Log, low: least.log10(), high: greatest.log10(), ticks: within };
    }
    Fitted { scale: Scale::Log, low: ticks[0].log10(), high: ticks[ticks.len() - 1].log10(), ticks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_ticks_are_round_and_cover_values() {
        assert_eq!(linear(523.0, false).ticks, [0.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0]);
        assert_eq!(linear(10.0, true).ticks, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(linear(10.4, true).place(10.4), 1.0);
        assert_eq!(linear(0.0, false).place(0.0), 0.0);
    }

    #[test]
    fn log_ticks_are_round_and_cover_values() {
        assert_eq!(log(8_400.0, 60_000.0, false).ticks, [5e3, 1e4, 2e4, 5e4, 1e5]);
        assert_eq!(log(90.0, 2e6, false).ticks, [10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7]);
        assert_eq!(log(1000.0, 1000.0, true).ticks, [1e3, 2e3]);
        assert_eq!(log(f64::INFINITY, 0.0, false).ticks.len(), 2);
        assert_eq!(log(90.0, 2e6, true).ticks, [100.0, 1e3, 1e4, 1e5, 1e6]);
        assert_eq!(log(90.0, 2e6, true).place(90.0), 0.0);
        let axis = log(10.0, 1e5, false);
        assert!((axis.value(axis.place(314.0)) - 314.0).abs() < 1e-6);
    }
}
