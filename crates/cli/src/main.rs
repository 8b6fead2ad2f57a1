//! The loquat command line
fn main() {}
