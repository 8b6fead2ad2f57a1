//! The device that a session runs on.

use std::sync::OnceLock;

use loquat_session::{Device, DeviceKind as Kind};

use crate::array::{DeviceKind, Fused, Ops};
use crate::ffi::Api;

/// One of MLX's devices.
pub struct MlxDevice {
    api: &'static Api,
    kind: DeviceKind,
    name: String,
    memory_bytes: u64,
}

impl MlxDevice {
    /// A GPU if MLX can use one, else the CPU.
    pub fn best(api: &'static Api) -> Self {
        // SAFETY: the library is never unloaded.
        let kind = if unsafe { (api.device_available)(DeviceKind::Gpu as u32) } {
            DeviceKind::Gpu
        } else {
            DeviceKind::Cpu
        };
        let mut memory_bytes = 0;
        // SAFETY: the text belongs to this thread until its next call, and is copied before that.
        let name = unsafe {
            let text = (api.device_name)(kind as u32, &mut memory_bytes);
            if text.data.is_null() {
                String::new()
            } else {
                let bytes = std::slice::from_raw_parts(text.data, text.len);
                String::from_utf8_lossy(bytes).into_owned()
            }
        };
        if memory_bytes == 0 {
            // The CPU does not report its memory: use MLX's own limit, read before any session
            // changes it.
            static DEFAULT_LIMIT: OnceLock<u64> = OnceLock::new();
            // SAFETY: the library is never unloaded.
            memory_bytes = *DEFAULT_LIMIT.get_or_init(|| unsafe { (api.memory_limit)() });
        }
        Self {
            api,
            kind,
            name,
            memory_bytes,
        }
    }

    pub fn api(&self) -> &'static Api {
        self.api
    }

    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub fn label(&self) -> String {
        // SAFETY: the text belongs to the library, which is never unloaded.
        let version = unsafe {
            let text = (self.api.version)();
            String::from_utf8_lossy(std::slice::from_raw_parts(text.data, text.len))
        };
        let on = match (self.kind, self.name.as_str()) {
            (DeviceKind::Cpu, _) => "its CPU",
            (DeviceKind::Gpu, "") => "a GPU",
            (DeviceKind::Gpu, name) => name,
        };
        format!("mlx {version} ({on})")
    }

    pub fn describe(&self) -> Device {
        Device {
            label: self.label(),
            memory_bytes: Some(self.memory_bytes),
            memory_bytes_per_second: None,
            kind: match self.kind {
                DeviceKind::Cpu => Kind::Cpu,
                DeviceKind::Gpu => Kind::Gpu,
            },
        }
    }

    /// Checks that MLX can compile functions at run time, and disables it if not. On its CPU, MLX
    /// would call a C++ compiler for each function, which never pays off.
    pub fn prepare(&self, ops: &Ops) {
        // The flag belongs to the process, so it is set once.
        static COMPILES: OnceLock<bool> = OnceLock::new();
        COMPILES.get_or_init(|| {
            let compiles = self.kind == DeviceKind::Gpu && try_compile(ops);
            // SAFETY: only a flag is passed.
            unsafe { (self.api.set_compile)(compiles) };
            if self.kind == DeviceKind::Gpu && !compiles {
                tracing::warn!("MLX cannot compile functions here: each operation runs alone");
            }
            compiles
        });
    }
}

fn try_compile(ops: &Ops) -> bool {
    let tried = ops.upload_f32(&[0.5, -0.5], &[2]).and_then(|x| {
        let compiled = ops.fused(Fused::SiluTimes, &[&x, &x])?;
        ops.eval(&[&compiled])
    });
    tried.is_ok()
}
