//! The table of backends that can be judged.

use loquat_cpu::CpuBackend;
use loquat_session::Backend;

static BACKENDS: &[&dyn Backend] = &[&CpuBackend::AUTO];

/// The backend called `name`, or a sentence that lists those there are.
pub fn named(name: &str) -> Result<&'static dyn Backend, String> {
    let mut backends = BACKENDS.iter().copied();
    let found = backends.find(|backend| backend.name() == name);
    found.ok_or_else(|| {
        let known: Vec<_> = BACKENDS.iter().map(|backend| backend.name()).collect();
        format!("there is no such backend; there is: {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_found_by_name_and_an_unknown_one_lists_them_all() {
        for backend in BACKENDS {
            let found = named(backend.name()).map(|found| found.name());
            assert_eq!(found, Ok(backend.name()));
            let refusal = named("abacus").err().unwrap_or_default();
            assert!(refusal.contains(backend.name()), "{refusal}");
        }
    }
}
