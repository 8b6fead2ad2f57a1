//! Which instruction sets the backend may use.

use loquat_cpu_kernels::{Kernels, supported};
use loquat_session::OpenError;

/// The variable that names the widest instruction set to use.
const VARIABLE: &str = "LOQUAT_ISA";

/// The kernels of this machine that `LOQUAT_ISA` allows, fastest first.
pub fn allowed() -> Result<Vec<&'static Kernels>, OpenError> {
    let tables = supported();
    match std::env::var_os(VARIABLE) {
        Some(name) if !name.is_empty() => limit(tables, &name.to_string_lossy()),
        _ => Ok(tables),
    }
}

/// The tables from the one with this name on.
fn limit(tables: Vec<&'static Kernels>, name: &str) -> Result<Vec<&'static Kernels>, OpenError> {
    match find(&tables, name) {
        Some(index) => Ok(tables[index..].to_vec()),
        None => Err(OpenError::Option {
            option: VARIABLE,
            found: name.to_owned(),
            expected: expected(&tables),
        }),
    }
}

/// Hyphens may be left out, and `avx512` is the fastest of the sets whose names begin so.
fn find(tables: &[&'static Kernels], name: &str) -> Option<usize> {
    let plain = |name: &str| name.replace('-', "").to_ascii_lowercase();
    let name = plain(name);
    let find = |matches: fn(&str, &str) -> bool| {
        let mut tables = tables.iter();
        tables.position(|table| matches(&plain(table.name), &name))
    };
    find(|table, name| table == name)
        .or_else(|| find(|table, name| name == "avx512" && table.starts_with(name)))
}

fn expected(tables: &[&'static Kernels]) -> String {
    let names: Vec<&str> = tables.iter().map(|table| table.name).collect();
    format!(
        "one of the instruction sets of this machine: {}",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_set_and_narrower_ones_are_allowed() {
        let tables = supported();
        for (index, table) in tables.iter().enumerate() {
            for name in [table.name.to_owned(), table.name.replace('-', "")] {
                let allowed = limit(tables.clone(), &name).unwrap();
                let names: Vec<_> = allowed.iter().map(|table| table.name).collect();
                let expected: Vec<_> = tables[index..].iter().map(|table| table.name).collect();
                assert_eq!(names, expected, "{name}");
            }
        }
        if tables.iter().any(|table| table.name == "avx512-vnni") {
            let allowed = limit(tables, "AVX512").unwrap();
            assert!(
                allowed[0].name.starts_with("avx512-"),
                "{}",
                allowed[0].name
            );
        }
    }

    #[test]
    fn absent_set_is_refused_with_the_present_ones() {
        for name in ["avx1024", "sse", "avx", "-"] {
            let Err(error) = limit(supported(), name) else {
                panic!("{name} is no instruction set");
            };
            let message = error.to_string();
            for part in ["LOQUAT_ISA", name, "portable"] {
                assert!(message.contains(part), "{message}");
            }
        }
    }
}
