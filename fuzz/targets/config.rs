//! Parses arbitrary text as a `config.json`: an error, or a spec whose tensors have names.

#![no_main]

use libfuzzer_sys::fuzz_target;
use loquat_spec::{Config, families};
use loquat_weights::{MlxQuantization, bind, fit};

fuzz_target!(|text: &str| {
    let Ok(config) = Config::parse(text, "fuzz") else {
        return;
    };
    let _ = MlxQuantization::from_config(&config);
    if let Ok(described) = families::from_config(&config) {
        let fitted = fit(&described.spec, &described.namings, &[], None);
        let bound = fitted.and_then(|(spec, naming)| bind(&spec, &naming, &[], None));
        assert!(bound.is_err(), "binding without tensors must fail");
    }
});
