//! Tests of the store's public API: references, packages, hub downloads, the inventory.
#![cfg(unix)]

mod fetch;
mod fixture;
mod hub;
mod hub_models;
mod resolve;
