//! `nvmf smart-log`: the SMART / Health log page of a controller.

use super::human::FREEZING_KELVIN;
use super::identify::page;
use super::raw::word;
use super::{PageOutput, TargetArguments};
use crate::connect::connect;
use crate::print::{self, human, line};
use crate::runtime::run;
use anyhow::Result;
use nvme_proto::admin::log_page::{LogPageId, SmartLog};
use nvme_proto::{Nqn, Nsid};
use nvmf_host::admin;
use serde_json::{Map, Value};
use zerocopy::IntoBytes;

/// Bytes of a data unit: a thousand blocks of 512 bytes.
const DATA_UNIT: u128 = 512_000;
/// The sensors, in JSON and in text. nvme-cli leaves out those that report 0 K.
const SENSORS: [(&str, &str); 8] = [
    ("temperature_sensor_1", "Temperature Sensor 1"),
    ("temperature_sensor_2", "Temperature Sensor 2"),
    ("temperature_sensor_3", "Temperature Sensor 3"),
    ("temperature_sensor_4", "Temperature Sensor 4"),
    ("temperature_sensor_5", "Temperature Sensor 5"),
    ("temperature_sensor_6", "Temperature Sensor 6"),
    ("temperature_sensor_7", "Temperature Sensor 7"),
    ("temperature_sensor_8", "Temperature Sensor 8"),
];

#[derive(clap::Args)]
pub(crate) struct SmartLogArguments {
    #[command(flatten)]
    target: TargetArguments,
    /// NQN of the subsystem
    #[arg(short = 'n', long)]
    nqn: Nqn,
    /// Ask for the log of one namespace, where the controller has one; 0xffffffff, as without it, is the controller's
    #[arg(long = "namespace-id", visible_alias = "nsid", value_parser = word, default_value = "0xffffffff",
        hide_default_value = true)]
    nsid: u32,
    /// Say what the bits of the critical warning mean
    #[arg(short = 'H', long)]
    human_readable: bool,
    #[command(flatten)]
    output: PageOutput,
}

impl SmartLogArguments {
    pub(crate) fn run(&self) -> Result<()> {
        let options = self.target.options(self.nqn)?;
        let log: SmartLog = run(async {
            let (connection, _) = connect(options).await?;
            let command =
                admin::get_log_page(LogPageId::SMART, Nsid(self.nsid), 0, size_of::<SmartLog>() as u32);
            let log = page(&connection.admin(command).await?, "Get Log Page (SMART / Health)")?;
            connection.close().await;
            Ok(log)
        })?;
        self.output.print(
            log.as_bytes(),
            || json(&log),
            || {
                line(format_args!("Smart Log for NVME device:{} namespace-id:{:x}", self.nqn, self.nsid))?;
                print::text(text(&log, self.human_readable))
            },
        )
    }
}

/// A field of the log.
struct Field {
    /// Its name in nvme-cli's JSON.
    name: &'static str,
    /// Its name in nvme-cli's text.
    title: &'static str,
    value: u128,
    unit: Unit,
}

enum Unit {
    None,
    Percent,
    Kelvin,
    DataUnits,
}

fn json(log: &SmartLog) -> Value {
    // JSON readers would round larger numbers.
    let number = |value| Value::from(u64::try_from(value).unwrap_or(u64::MAX));
    let fields = fields(log).into_iter().map(|field| (field.name.to_owned(), number(field.value)));
    Value::Object(fields.collect::<Map<_, _>>())
}

/// What the bits of the critical warning say.
const WARNINGS: [&str; 6] = [
    "Available Spare[0]",
    "Temp. Threshold[1]",
    "NVM subsystem Reliability[2]",
    "Read-only[3]",
    "Volatile mem. backup failed[4]",
    "Persistent Mem. RO[5]",
];

fn text(log: &SmartLog, human_readable: bool) -> String {
    let line = |field: Field| {
        let Field { name, title, value, unit } = field;
        let value = match unit {
            Unit::None => value.to_string(),
            Unit::Percent => format!("{value}%"),
            Unit::Kelvin if value == 0 => "not reported".to_owned(),
            Unit::Kelvin => format!("{} °C ({value} K)", value as i128 - FREEZING_KELVIN),
            Unit::DataUnits => {
                let bytes = u64::try_from(value.saturating_mul(DATA_UNIT)).unwrap_or(u64::MAX);
                format!("{value} ({})", human(bytes))
            }
        };
        let mut text = format!("{title:<40}: {value}\n");
        if human_readable && name == "critical_warning" {
            for (bit, warning) in WARNINGS.iter().enumerate() {
                text += &format!("      {warning:<31}: {}\n", log.critical_warning >> bit & 1);
            }
        }
        text
    };
    fields(log).into_iter().map(line).collect()
}

/// The log's fields under nvme-cli's names, in its order.
fn fields(log: &SmartLog) -> Vec<Field> {
    let field = |name, title, value, unit| Field { name, title, value, unit };
    let count = |name, title, value| field(name, title, value, Unit::None);
    let wide = u128::from_le_bytes;
    let kelvin = |name, title, value: u16| field(name, title, value.into(), Unit::Kelvin);
    let percent = |name, title, value: u8| field(name, title, value.into(), Unit::Percent);
    let mut fields = vec![
        count("critical_warning", "critical_warning", log.critical_warning.into()),
        kelvin("temperature", "temperature", log.composite_temperature_kelvin.get()),
        percent("avail_spare", "available_spare", log.available_spare),
        percent("spare_thresh", "available_spare_threshold", log.available_spare_threshold),
        percent("percent_used", "percentage_used", log.percentage_used),
        count(
            "endurance_grp_critical_warning_summary",
            "endurance group critical warning summary",
            log.endurance_group_critical_warning_summary.into(),
        ),
        field("data_units_read", "Data Units Read", wide(log.data_units_read), Unit::DataUnits),
        field("data_units_written", "Data Units Written", wide(log.data_units_written), Unit::DataUnits),
        count("host_read_commands", "host_read_commands", wide(log.host_read_commands)),
        count("host_write_commands", "host_write_commands", wide(log.host_write_commands)),
        count("controller_busy_time", "controller_busy_time", wide(log.controller_busy_time)),
        count("power_cycles", "power_cycles", wide(log.power_cycles)),
        count("power_on_hours", "power_on_hours", wide(log.power_on_hours)),
        count("unsafe_shutdowns", "unsafe_shutdowns", wide(log.unsafe_shutdowns)),
        count("media_errors", "media_errors", wide(log.media_errors)),
        count("num_err_log_entries", "num_err_log_entries", wide(log.error_log_entries)),
        count("warning_temp_time", "Warning Temperature Time", log.warning_temperature_minutes.get().into()),
        count(
            "critical_comp_time",
            "Critical Composite Temperature Time",
            log.critical_temperature_minutes.get().into(),
        ),
    ];
    for ((name, title), sensor) in SENSORS.into_iter().zip(log.temperature_sensors) {
        if sensor.get() != 0 {
            fields.push(kelvin(name, title, sensor.get()));
        }
    }
    let ([first, second], [first_time, second_time]) = (
        log.thermal_management_temperature_transition_count,
        log.total_time_for_thermal_management_temperature,
    );
    fields.extend([
        count("thm_temp1_trans_count", "Thermal Management T1 Trans Count", first.get().into()),
        count("thm_temp2_trans_count", "Thermal Management T2 Trans Count", second.get().into()),
        count("thm_temp1_total_time", "Thermal Management T1 Total Time", first_time.get().into()),
        count("thm_temp2_total_time", "Thermal Management T2 Total Time", second_time.get().into()),
    ]);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    /// The page with these bytes at these places, and zeroes elsewhere.
    fn page(places: &[(usize, &[u8])]) -> SmartLog {
        let mut bytes = [0; 512];
        for (at, value) in places {
            bytes[*at..*at + value.len()].copy_from_slice(value);
        }
        SmartLog::read_from_bytes(&bytes).unwrap()
    }

    #[test]
    fn fields_are_read_from_their_offsets() {
        let log = page(&[
            (0, &[4]),
            (1, &310_u16.to_le_bytes()),
            (3, &[100, 10, 7]),
            (32, &[2]),
            (48, &[0xff; 16]),
            (176, &[9]),
            (192, &[1]),
            (196, &[2]),
            (202, &300_u16.to_le_bytes()),
            (216, &[3]),
            (228, &[6]),
        ]);
        let json = json(&log);
        for (name, value) in [
            ("critical_warning", 4),
            ("temperature", 310),
            ("avail_spare", 100),
            ("spare_thresh", 10),
            ("percent_used", 7),
            ("data_units_read", 2),
            ("data_units_written", u64::MAX),
            ("num_err_log_entries", 9),
            ("warning_temp_time", 1),
            ("critical_comp_time", 2),
            ("temperature_sensor_2", 300),
            ("thm_temp1_trans_count", 3),
            ("thm_temp2_total_time", 6),
        ] {
            assert_eq!(json[name], value, "{name}");
        }
        assert_eq!(json.get("temperature_sensor_1"), None, "a sensor that is not there");
    }

    #[test]
    fn temperature_of_zero_kelvin_is_none() {
        let line = "temperature                             : not reported";
        assert!(text(&page(&[]), false).lines().any(|there| there == line));
    }

    #[test]
    fn text_has_units() {
        let text = text(&page(&[(0, &[4]), (1, &310_u16.to_le_bytes()), (3, &[100]), (32, &[2])]), true);
        for line in [
            "      NVM subsystem Reliability[2]   : 1",
            "temperature                             : 37 °C (310 K)",
            "available_spare                         : 100%",
            "Data Units Read                         : 2 (1000.00 KiB)",
        ] {
            assert!(text.lines().any(|there| there == line), "`{line}` is not in:\n{text}");
        }
    }
}
