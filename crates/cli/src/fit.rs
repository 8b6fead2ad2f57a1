pub fn run(_: &crate::args::FitArgs) -> Result<(), crate::error::CliError> {
    Ok(())
}
