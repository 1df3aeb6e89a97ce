//! `nvmf show-regs`: the properties of a controller, under the registers' names.

use super::{Format, Output, TargetArguments, human};
use crate::connect::connect;
use crate::print::{line, print_json};
use crate::runtime::run;
use anyhow::{Result, bail};
use nvme_proto::Nqn;
use nvme_proto::fabrics::property::Property;
use nvmf_host::admin;
use serde_json::{Map, Value};

#[derive(clap::Args)]
pub(crate) struct ShowRegs {
    #[command(flatten)]
    target: TargetArguments,
    /// NQN of the subsystem
    #[arg(short = 'n', long)]
    nqn: Nqn,
    /// Say what their bits mean
    #[arg(short = 'H', long)]
    human_readable: bool,
    #[command(flatten)]
    output: Output,
}

/// Those that a controller of NVMe over Fabrics has; the first four it must have.
const PROPERTIES: [(&str, Property, &str); 7] = [
    ("cap", Property::CAP, "Controller Capabilities"),
    ("vs", Property::VS, "Version"),
    ("cc", Property::CC, "Controller Configuration"),
    ("csts", Property::CSTS, "Controller Status"),
    ("nssr", Property::NSSR, "NVM Subsystem Reset"),
    ("nssd", Property::NSSD, "NVM Subsystem Shutdown"),
    ("crto", Property::CRTO, "Controller Ready Timeouts"),
];

const OPTIONAL: [Property; 3] = [Property::NSSR, Property::NSSD, Property::CRTO];

impl ShowRegs {
    pub(crate) fn run(&self) -> Result<()> {
        let options = self.target.options(self.nqn)?;
        let values = run(async {
            let (connection, _) = connect(options).await?;
            let mut values = Vec::new();
            for (name, property, meaning) in PROPERTIES {
                let outcome = connection.admin(admin::property_get(property)).await?.outcome;
                if outcome.status.is_success() {
                    values.push((name, meaning, u64::from(outcome.dw0) | u64::from(outcome.dw1) << 32));
                } else if !OPTIONAL.contains(&property) {
                    connection.close().await;
                    bail!("the controller refused Property Get of {name}: {}", outcome.status);
                }
            }
            connection.close().await;
            Ok(values)
        })?;
        if self.output.format == Format::Json {
            let fields = values.iter().map(|(name, _, value)| ((*name).to_owned(), Value::from(*value)));
            return print_json(Value::Object(fields.collect::<Map<_, _>>()));
        }
        for (name, meaning, value) in values {
            line(format_args!("{name:<8}: {value:x}  {meaning}"))?;
            for explained in human::registers::explain(name, value).iter().filter(|_| self.human_readable) {
                line(explained)?;
            }
        }
        Ok(())
    }
}
