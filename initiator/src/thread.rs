//! The thread behind a connection: it drives the engine when no caller does.

use crate::driver::{Driver, DriverConfig, Factory, Route};
use crate::engine::{Engine, FirstError, Observers};
use crate::log::Log;
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
    more_paths: Vec<(Route, Factory<T>)>,
    config: DriverConfig,
    shared_driver: Arc<SharedDriver>,
    mut observers: Observers,
) {
    let ending = Ending(shared_driver);
    let operations = config.operations as usize;
    let log = Log::of(config.association.subsystem_nqn);
    let driver = transport()
        .map_err(FirstError::System)
        .and_then(|transport| Driver::new(transport, config, Duration::ZERO).map_err(FirstError::from));
    let driver = driver.and_then(|mut driver| {
        driver.set_factory(Box::new(transport));
        for (route, mut factory) in more_paths {
            let transport = factory().map_err(FirstError::System)?;
            driver.add_path(transport, route, Some(factory), Duration::ZERO)?;
        }
        Ok(driver)
    });
    match driver {
        Ok(driver) => {
            ending.0.start(Box::new(Engine::new(driver, operations, log, observers)));
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
