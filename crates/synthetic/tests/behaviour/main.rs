//! Generated models have the right shape, run, and can be saved.

mod saving;
mod shapes;
mod values;
