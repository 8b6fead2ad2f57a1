//! The store through its public doors: references, packages, the hub's models, the inventory.
#![cfg(unix)]

mod common;
mod fetch;
mod hub_models;
mod resolve;
