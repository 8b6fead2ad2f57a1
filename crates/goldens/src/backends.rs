//! The table of backends that can be judged.

use loquat_cpu::CpuBackend;
use loquat_mlx::MlxBackend;
use loquat_session::Backend;

/// A backend, and how it is held to a reference.
pub struct Judged {
    pub backend: &'static dyn Backend,
    /// The most it may differ, whatever the weights' format allows.
    pub limit: f32,
    /// Where its results are not the same to the bit on every machine: the least difference that
    /// the support matrix shows, which are powers of ten then.
    pub coarse: Option<f32>,
}

/// In the order of the support matrix's columns.
pub static BACKENDS: &[Judged] = &[
    Judged {
        backend: &CpuBackend::AUTO,
        limit: 1e-4,
        coarse: None,
    },
    // MLX adds up in an order of each device's own.
    Judged {
        backend: &MlxBackend::AUTO,
        limit: 1e-3,
        coarse: Some(1e-4),
    },
];

impl Judged {
    pub fn name(&self) -> &'static str {
        self.backend.name()
    }
}

/// The backend called `name`, or a sentence that lists those there are.
pub fn named(name: &str) -> Result<&'static Judged, String> {
    let found = BACKENDS.iter().find(|judged| judged.name() == name);
    found.ok_or_else(|| {
        let known: Vec<_> = BACKENDS.iter().map(Judged::name).collect();
        format!("there is no such backend; there is: {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_found_by_name_and_an_unknown_one_lists_them_all() {
        for judged in BACKENDS {
            let found = named(judged.name()).map(Judged::name);
            assert_eq!(found, Ok(judged.name()));
            let refusal = named("abacus").err().unwrap_or_default();
            assert!(refusal.contains(judged.name()), "{refusal}");
        }
    }
}
