//! The machine as far as models are concerned: whose memory holds them, and how fast it is.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loquat::machine::{
    MachineLimits, MachineMemory, instruction_sets, measure_quickly, processor_name,
};
use loquat_session::{Backend, DeviceKind, MemoryBudget, Probe};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::files;

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
    /// Since anything was measured.
    pub age: Duration,
}

/// Whether this machine is to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// As if it had never been.
    Anew,
    /// Unless it was within the last [`FRESH`].
    WhenOld,
    /// No; what was found before serves.
    Never,
}

/// Whoever else uses the machine makes it look slower than it is, so the best of all measurements
/// counts, and those that share a neighbour's hour would find the same.
const FRESH: Duration = Duration::from_secs(60 * 60);

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
            available_bytes: if is_gpu {
                None
            } else {
                MachineMemory::now().available
            },
            pace: if is_measured {
                Pace::of_this_machine(cache, measure)?
            } else {
                None
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
            Measure::WhenOld | Measure::Never => record.read(SystemTime::now()),
        };
        let is_fresh = known.is_some_and(|known| known.age < FRESH);
        if measure == Measure::Never || is_fresh {
            return Ok(known);
        }
        let MachineLimits {
            read_bytes_per_second,
            multiply_adds_per_second,
            ..
        } = measure_quickly(None)?;
        // Whole numbers come back from JSON as they went.
        let found = Self {
            read_bytes_per_second: read_bytes_per_second.round(),
            multiply_adds_per_second: multiply_adds_per_second.round(),
            age: Duration::ZERO,
        };
        let best = known.map_or(found, |known| found.or_better(known));
        record.write(SystemTime::now(), best);
        Ok(Some(best))
    }

    fn or_better(self, other: Self) -> Self {
        let (read, multiply) = (self.read_bytes_per_second, self.multiply_adds_per_second);
        Self {
            read_bytes_per_second: read.max(other.read_bytes_per_second),
            multiply_adds_per_second: multiply.max(other.multiply_adds_per_second),
            age: self.age.min(other.age),
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

    /// The best that was found.
    fn read(&self, now: SystemTime) -> Option<Pace> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let record: Value = serde_json::from_str(&text).ok()?;
        let speed = |name: &str| record[name].as_f64().filter(|speed| *speed > 0.0);
        let measured = Duration::from_secs(record["measured"].as_u64()?);
        let pace = Pace {
            read_bytes_per_second: speed("read_bytes_per_second")?,
            multiply_adds_per_second: speed("int8_multiply_adds_per_second")?,
            // A clock that was set back says nothing of how old it is.
            age: since_1970(now).checked_sub(measured).unwrap_or(FRESH),
        };
        (record["machine"] == self.identity.as_str()).then_some(pace)
    }

    /// What cannot be kept is measured again.
    fn write(&self, measured: SystemTime, pace: Pace) {
        let record = json!({
            "machine": self.identity,
            "measured": since_1970(measured).as_secs(),
            "read_bytes_per_second": pace.read_bytes_per_second,
            "int8_multiply_adds_per_second": pace.multiply_adds_per_second,
        });
        let write = || {
            std::fs::create_dir_all(self.path.parent().unwrap_or(&self.path))?;
            files::write_whole(&self.path, &format!("{record:#}\n"), true)
        };
        if let Err(error) = write() {
            tracing::debug!("{} is not kept: {error}", self.path.display());
        }
    }
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(speed: f64) -> Pace {
        Pace {
            read_bytes_per_second: speed,
            multiply_adds_per_second: speed,
            age: Duration::ZERO,
        }
    }

    #[test]
    fn a_measurement_is_kept_for_its_machine_alone() {
        let folder = tempfile::tempdir().unwrap();
        let record = |identity: &str| Record {
            path: folder.path().join("a/machine.json"),
            identity: identity.to_owned(),
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        assert_eq!(record("one").read(now), None);
        record("one").write(now, pace(1e10));
        assert_eq!(record("one").read(now), Some(pace(1e10)));
        assert_eq!(record("other").read(now), None);
        let later = record("one").read(now + Duration::from_secs(90)).unwrap();
        assert_eq!(later.age, Duration::from_secs(90));
        for broken in [
            "",
            "{",
            "{\"machine\": \"one\", \"read_bytes_per_second\": -1}",
        ] {
            std::fs::write(&record("one").path, broken).unwrap();
            assert_eq!(record("one").read(now), None, "{broken}");
        }
        let files = std::fs::read_dir(folder.path().join("a")).unwrap();
        assert_eq!(files.count(), 1, "no draft is left");
    }

    /// Neither does a machine that was busy once look slow for good, nor is it measured at every
    /// question.
    #[test]
    fn the_best_of_all_measurements_counts_and_old_ones_are_followed_by_others() {
        const SLOW: f64 = 1.0;
        const FAST: f64 = 1e18;
        let folder = tempfile::tempdir().unwrap();
        let look = |measure| Pace::of_this_machine(folder.path(), measure).unwrap();
        let record = Record::of_this_machine(folder.path());
        assert_eq!(look(Measure::Never), None);
        let (minute, day) = (60, 60 * 60 * 24);
        for (known, seconds_ago, is_measured) in [
            (SLOW, minute, false),
            (SLOW, day, true),
            (FAST, day, true),
            // The clock was set back since.
            (SLOW, -day, true),
        ] {
            let ago = Duration::from_secs(i64::unsigned_abs(seconds_ago));
            let then = if seconds_ago < 0 {
                SystemTime::now() + ago
            } else {
                SystemTime::now() - ago
            };
            record.write(then, pace(known));
            let found = look(Measure::WhenOld).unwrap();
            let kept = known == FAST || !is_measured;
            let is_known = found.read_bytes_per_second == known;
            assert_eq!(is_known, kept, "{known} {seconds_ago}");
            let age = record.read(SystemTime::now()).unwrap().age;
            let is_new = age < Duration::from_secs(minute as u64);
            assert_eq!(is_new, is_measured, "{known} {seconds_ago}");
        }
        record.write(SystemTime::now(), pace(FAST));
        let anew = look(Measure::Anew).unwrap().read_bytes_per_second;
        assert!(anew < FAST);
        let kept = look(Measure::Never).unwrap();
        assert_eq!(kept.read_bytes_per_second, anew);
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
