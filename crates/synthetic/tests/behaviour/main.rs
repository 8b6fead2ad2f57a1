//! Made models have the right shape, compute, and can be saved.

mod saving;
mod shapes;
mod values;
