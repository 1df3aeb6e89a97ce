//! The thread behind a connection: it keeps what nobody else drives.

use crate::driver::{Driver, DriverConfig, StartError};
use crate::engine::{Audience, Engine, FirstError};
use crate::shared_driver::SharedDriver;
use core::time::Duration;
use nvmf_rdma::Provider;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Whatever becomes of the thread, nobody waits for it in vain.
struct Ending(Arc<SharedDriver>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs until the connection is closed or given up. The audience hears how the first connection went.
pub(crate) fn run<P: Provider + Send + 'static>(
    provider: impl FnOnce() -> Result<P, String>,
    config: DriverConfig,
    shared_driver: Arc<SharedDriver>,
    mut audience: Audience,
) {
    let ending = Ending(shared_driver);
    let operations = config.operations as usize;
    let driver = provider().map_err(FirstError::System).and_then(|provider| {
        Driver::new(provider, config, Duration::ZERO).map_err(|error| match error {
            StartError::Association(error) => FirstError::Association(error),
            StartError::Provider(reason) => FirstError::System(reason),
        })
    });
    let driver = match driver {
        Ok(driver) => driver,
        Err(error) => return refuse(&mut audience, error),
    };
    let provider = driver.provider().fd().map(|fd| fd.try_clone_to_owned()).transpose();
    match provider {
        Ok(provider) => {
            ending.0.start(Box::new(Engine::new(driver, operations, audience)));
            ending.0.drive_until_over(provider.as_ref().map(AsFd::as_fd));
        }
        Err(error) => refuse(&mut audience, FirstError::System(error.to_string())),
    }
}

fn refuse(audience: &mut Audience, error: FirstError) {
    if let Some(first) = audience.first.take() {
        let _ = first.send(Err(error));
    }
}
