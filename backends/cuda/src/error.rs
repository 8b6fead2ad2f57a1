//! How errors of the driver and of kernels appear to the engine.

use loquat_session::{OpenError, SessionError};

use crate::driver::DriverError;
use crate::kernels::KernelError;

impl From<DriverError> for SessionError {
    fn from(error: DriverError) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<DriverError> for OpenError {
    fn from(error: DriverError) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<KernelError> for SessionError {
    fn from(error: KernelError) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<KernelError> for OpenError {
    fn from(error: KernelError) -> Self {
        Self::Device(error.to_string())
    }
}
