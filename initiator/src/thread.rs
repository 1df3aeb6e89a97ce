//! The thread behind a connection: it drives the engine when no caller does.

use crate::driver::{Driver, DriverConfig, StartError};
use crate::engine::{Engine, FirstError, Observers};
use crate::shared_driver::SharedDriver;
use crate::transport::Transport;
use core::time::Duration;
use std::sync::Arc;

/// Ends the shared driver when the thread ends, also by a panic: nobody waits for ever.
struct Ending(Arc<SharedDriver>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs until the connection is closed or given up. The observers are told the result of the first attempt to connect.
pub(crate) fn run<T: Transport<Region: Send> + Send + 'static>(
    mut transport: impl FnMut() -> Result<T, String> + Send + 'static,
    config: DriverConfig,
    shared_driver: Arc<SharedDriver>,
    mut observers: Observers,
) {
    let ending = Ending(shared_driver);
    let operations = config.operations as usize;
    let driver = transport().map_err(FirstError::System).and_then(|transport| {
        Driver::new(transport, config, Duration::ZERO).map_err(|error| match error {
            StartError::Association(error) => FirstError::Association(error),
            StartError::Transport(error) => FirstError::System(error.to_string()),
        })
    });
    match driver {
        Ok(mut driver) => {
            driver.set_factory(Box::new(transport));
            ending.0.start(Box::new(Engine::new(driver, operations, observers)));
            ending.0.drive_until_over();
        }
        Err(error) => refuse(&mut observers, error),
    }
}

fn refuse(observers: &mut Observers, error: FirstError) {
    if let Some(first) = observers.first.take() {
        let _ = first.send(Err(error));
    }
}
