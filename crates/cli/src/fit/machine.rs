//! The machine as far as models are concerned: whose memory holds them, and how fast it is.

use std::path::{Path, PathBuf};

use loquat::machine::{
    MachineLimits, MachineMemory, instruction_sets, measure_quickly, processor_name,
};
use loquat_session::{Backend, DeviceKind, MemoryBudget, Probe};
use serde_json::{Value, json};

use crate::error::CliError;

/// Where models would be, and what that can do.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub backend: &'static str,
    pub device: String,
    /// Memory of its own holds the models.
    pub is_gpu: bool,
    /// What models may take; `None` where the device does not tell.
    pub memory_bytes: Option<u64>,
    /// What others leave of it now, where the system tells.
    pub available_bytes: Option<u64>,
    /// `None` where nothing was measured: nobody's data sheet stands in for that.
    pub pace: Option<Pace>,
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    pub read_bytes_per_second: f64,
    pub multiply_adds_per_second: f64,
}

/// Whether this machine is to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// As if it had never been.
    Anew,
    /// Unless it was [`ENOUGH`] times.
    Enough,
    /// No; what was found before serves.
    Never,
}

/// Whoever else uses the machine makes it look slower than it is: the best of so many
/// measurements, each of another day's load, counts.
const ENOUGH: u64 = 3;

impl Machine {
    /// As `backend` finds it; measurements are kept in the directory `cache`.
    pub fn look(backend: &dyn Backend, cache: &Path, measure: Measure) -> Result<Self, CliError> {
        let device = match backend.probe() {
            Probe::Available(devices) => devices.into_iter().next(),
            Probe::Unavailable { .. } => None,
        };
        let is_gpu = device.as_ref().map(|device| device.kind) == Some(DeviceKind::Gpu);
        let label = device.as_ref().map(|device| device.label.clone());
        // What a token costs is known for this backend's own kernels alone.
        let is_measured = backend.name() == "cpu";
        Ok(Self {
            backend: backend.name(),
            device: label.unwrap_or_else(|| backend.name().to_owned()),
            is_gpu,
            memory_bytes: device.and_then(|device| device.memory_bytes),
            available_bytes: match is_gpu {
                true => None,
                false => MachineMemory::now().available,
            },
            pace: match is_measured {
                true => Pace::of_this_machine(cache, measure)?,
                false => None,
            },
        })
    }

    /// With no more memory than a budget allows.
    pub fn within(mut self, budget: Option<MemoryBudget>) -> Self {
        let allowed = budget.map(|budget| match (budget, self.memory_bytes) {
            (budget, Some(memory)) => budget.bytes(memory).min(memory),
            (budget, None) => budget.bytes(u64::MAX),
        });
        self.memory_bytes = allowed.or(self.memory_bytes);
        self
    }
}

impl Pace {
    fn of_this_machine(cache: &Path, measure: Measure) -> Result<Option<Self>, CliError> {
        let record = Record::of_this_machine(cache);
        let known = match measure {
            Measure::Anew => None,
            Measure::Enough | Measure::Never => record.read(),
        };
        let times = known.map_or(0, |(times, _)| times);
        if measure == Measure::Never || times >= ENOUGH {
            return Ok(known.map(|(_, pace)| pace));
        }
        let MachineLimits {
            read_bytes_per_second,
            multiply_adds_per_second,
            ..
        } = measure_quickly(None)?;
        let found = Self {
            read_bytes_per_second,
            multiply_adds_per_second,
        };
        let best = known.map_or(found, |(_, known)| found.or_better(known));
        record.write(times + 1, best);
        Ok(Some(best))
    }

    fn or_better(self, other: Self) -> Self {
        let (read, multiply) = (self.read_bytes_per_second, self.multiply_adds_per_second);
        Self {
            read_bytes_per_second: read.max(other.read_bytes_per_second),
            multiply_adds_per_second: multiply.max(other.multiply_adds_per_second),
        }
    }
}

/// A measurement on disk, and whose it is.
struct Record {
    path: PathBuf,
    /// A cache may travel between machines, and containers share one.
    identity: String,
}

impl Record {
    fn of_this_machine(cache: &Path) -> Self {
        let processor = processor_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        let cores = loquat::machine::MachineCores::now();
        let unit = instruction_sets().first().copied().unwrap_or_default();
        let memory = MachineMemory::now();
        Self {
            path: cache.join("machine.json"),
            identity: format!(
                "{processor}, {} threads, {unit}, {} bytes, loquat {}",
                cores.threads,
                memory.physical.unwrap_or_default(),
                env!("CARGO_PKG_VERSION"),
            ),
        }
    }

    /// How often it was measured, and the best that was found.
    fn read(&self) -> Option<(u64, Pace)> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let record: Value = serde_json::from_str(&text).ok()?;
        let speed = |name: &str| record[name].as_f64().filter(|speed| *speed > 0.0);
        let pace = Pace {
            read_bytes_per_second: speed("read_bytes_per_second")?,
            multiply_adds_per_second: speed("int8_multiply_adds_per_second")?,
        };
        let times = record["times"].as_u64()?;
        (record["machine"] == self.identity.as_str()).then_some((times, pace))
    }

    /// What cannot be kept is measured again.
    fn write(&self, times: u64, pace: Pace) {
        let record = json!({
            "machine": self.identity,
            "times": times,
            "read_bytes_per_second": pace.read_bytes_per_second,
            "int8_multiply_adds_per_second": pace.multiply_adds_per_second,
        });
        let draft = self.path.with_extension(format!("{}", std::process::id()));
        let write = || {
            std::fs::create_dir_all(self.path.parent().unwrap_or(&self.path))?;
            std::fs::write(&draft, format!("{record:#}\n"))?;
            std::fs::rename(&draft, &self.path)
        };
        if let Err(error) = write() {
            tracing::debug!("{} is not kept: {error}", self.path.display());
            let _ = std::fs::remove_file(&draft);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_kept_for_its_machine_alone() {
        let folder = tempfile::tempdir().unwrap();
        let record = |identity: &str| Record {
            path: folder.path().join("a/machine.json"),
            identity: identity.to_owned(),
        };
        let pace = Pace {
            read_bytes_per_second: 1e10,
            multiply_adds_per_second: 1e11,
        };
        assert_eq!(record("one").read(), None);
        record("one").write(2, pace);
        assert_eq!(record("one").read(), Some((2, pace)));
        assert_eq!(record("other").read(), None);
        for broken in [
            "",
            "{",
            "{\"machine\": \"one\", \"read_bytes_per_second\": -1}",
        ] {
            std::fs::write(&record("one").path, broken).unwrap();
            assert_eq!(record("one").read(), None, "{broken}");
        }
        let files = std::fs::read_dir(folder.path().join("a")).unwrap();
        assert_eq!(files.count(), 1, "no draft is left");
    }

    #[test]
    fn the_best_of_a_few_measurements_counts() {
        let folder = tempfile::tempdir().unwrap();
        let look = |measure| Pace::of_this_machine(folder.path(), measure).unwrap();
        let record = Record::of_this_machine(folder.path());
        let fast = Pace {
            read_bytes_per_second: 1e18,
            multiply_adds_per_second: 1e18,
        };
        assert_eq!(look(Measure::Never), None);
        record.write(ENOUGH - 1, fast);
        assert_eq!(look(Measure::Enough), Some(fast));
        assert_eq!(record.read().unwrap().0, ENOUGH);
        assert_eq!(look(Measure::Enough), Some(fast));
        assert_eq!(record.read().unwrap().0, ENOUGH);
        let anew = look(Measure::Anew).unwrap();
        assert!(anew.read_bytes_per_second < 1e18);
        assert_eq!(record.read(), Some((1, anew)));
        assert_eq!(look(Measure::Never), Some(anew));
    }

    #[test]
    fn a_budget_only_ever_takes_away() {
        let machine = |memory_bytes| Machine {
            backend: "cpu",
            device: String::new(),
            is_gpu: false,
            memory_bytes,
            available_bytes: None,
            pace: None,
        };
        for (memory, budget, expected) in [
            (Some(100), None, Some(100)),
            (Some(100), Some(MemoryBudget::Bytes(30)), Some(30)),
            (Some(100), Some(MemoryBudget::Bytes(300)), Some(100)),
            (Some(100), Some(MemoryBudget::Percent(50)), Some(50)),
            (None, Some(MemoryBudget::Bytes(30)), Some(30)),
            (None, None, None),
        ] {
            assert_eq!(machine(memory).within(budget).memory_bytes, expected);
        }
    }
}
