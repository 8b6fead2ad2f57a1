pub fn run(_: &crate::args::QuickstartArgs) -> Result<(), crate::error::CliError> {
    Ok(())
}
