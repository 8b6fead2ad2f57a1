//! Address, token and cache of the hub. The only part of the hub that reads the environment.
//!
//! Variables and their precedence follow Python's `huggingface_hub`, so that all tools on a machine
//! use the same cache.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf, absolute};

use super::HubError;

pub(crate) const ENDPOINT_VARIABLE: &str = "HF_ENDPOINT";
pub(crate) const TOKEN_VARIABLE: &str = "HF_TOKEN";
pub(crate) const CACHE_VARIABLE: &str = "HF_HUB_CACHE";
pub(crate) const OFFLINE_VARIABLE: &str = "HF_HUB_OFFLINE";
pub(crate) const LOQUAT_OFFLINE_VARIABLE: &str = "LOQUAT_OFFLINE";

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Options of the hub. An empty environment variable counts as unset.
#[derive(Clone, Default)]
pub struct HubOptions {
    /// The hub's address. Else `HF_ENDPOINT`; else the Hugging Face Hub.
    pub endpoint: Option<String>,
    /// The access token. Else `HF_TOKEN`, `HUGGING_FACE_HUB_TOKEN`, the file that
    /// `HF_TOKEN_PATH` names, or the file `token` in `HF_HOME`.
    pub token: Option<String>,
    /// The cache. Else `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, or `hub` in `HF_HOME`, which is
    /// `huggingface` in `XDG_CACHE_HOME` or `~/.cache`, on every platform.
    pub cache_dir: Option<PathBuf>,
    /// No network. Also by `HF_HUB_OFFLINE=1` or `LOQUAT_OFFLINE=1`.
    pub offline: bool,
}

impl fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            endpoint,
            token,
            cache_dir,
            offline,
        } = self;
        f.debug_struct("HubOptions")
            .field("endpoint", &endpoint.as_deref().map(without_login))
            .field("token", &token.as_ref().map(|_| "…"))
            .field("cache_dir", cache_dir)
            .field("offline", offline)
            .finish()
    }
}

/// Options resolved against the environment.
pub(crate) struct ResolvedHubOptions {
    /// Without a trailing slash.
    pub endpoint: String,
    /// The hub's name in messages.
    pub name: String,
    pub token: Option<String>,
    pub cache_dir: PathBuf,
    pub offline: bool,
}

impl HubOptions {
    pub(crate) fn resolve(self) -> Result<ResolvedHubOptions, HubError> {
        self.resolve_in(&Environment {
            variable: |name: &str| env::var_os(name),
            home: etcetera::home_dir().ok(),
        })
    }

    fn resolve_in<V>(self, environment: &Environment<V>) -> Result<ResolvedHubOptions, HubError>
    where
        V: Fn(&str) -> Option<OsString>,
    {
        let (endpoint, name) = endpoint(self.endpoint, environment)?;
        let cache_dir = self
            .cache_dir
            .or_else(|| environment.path("HF_HUB_CACHE"))
            .or_else(|| environment.path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(environment.hf_home()?.join("hub")))
            .ok_or(HubError::NoCacheDir)?;
        let cache_dir = absolute(&cache_dir)
            .map_err(|cause| HubError::io("find the cache directory", &cache_dir, cause))?;
        let offline = self.offline
            || [OFFLINE_VARIABLE, LOQUAT_OFFLINE_VARIABLE]
                .iter()
                .any(|name| environment.is_on(name));
        Ok(ResolvedHubOptions {
            endpoint,
            name,
            token: token(self.token, environment)?,
            cache_dir,
            offline,
        })
    }
}

struct Environment<V> {
    variable: V,
    home: Option<PathBuf>,
}

impl<V: Fn(&str) -> Option<OsString>> Environment<V> {
    fn text(&self, name: &str) -> Option<String> {
        let value = (self.variable)(name)?.into_string().ok()?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        let value = (self.variable)(name).filter(|value| !value.is_empty())?;
        let path = PathBuf::from(value);
        match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) => Some(home.join(rest)),
            _ => Some(path),
        }
    }

    fn is_on(&self, name: &str) -> bool {
        let value = self.text(name).unwrap_or_default();
        ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
    }

    fn hf_home(&self) -> Option<PathBuf> {
        self.path("HF_HOME").or_else(|| {
            let cache = self
                .path("XDG_CACHE_HOME")
                .or_else(|| Some(self.home.as_ref()?.join(".cache")))?;
            Some(cache.join("huggingface"))
        })
    }
}

fn endpoint<V>(
    chosen: Option<String>,
    environment: &Environment<V>,
) -> Result<(String, String), HubError>
where
    V: Fn(&str) -> Option<OsString>,
{
    let by_variable = chosen.is_none();
    let Some(endpoint) = chosen.or_else(|| environment.text(ENDPOINT_VARIABLE)) else {
        return Ok((
            DEFAULT_ENDPOINT.to_owned(),
            "the Hugging Face Hub".to_owned(),
        ));
    };
    let plain = endpoint.trim_end_matches('/');
    let is_web = ["http://", "https://"].iter().any(|scheme| {
        plain
            .strip_prefix(scheme)
            .is_some_and(|rest| !rest.is_empty())
    });
    if !is_web || plain.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(HubError::BadOption {
            name: if by_variable {
                ENDPOINT_VARIABLE
            } else {
                "the hub's address"
            },
            value: without_login(&endpoint),
            expected: "an address that starts with https:// or http://",
        });
    }
    let displayed = without_login(plain);
    let name = if by_variable {
        format!("the mirror {displayed} ({ENDPOINT_VARIABLE})")
    } else {
        displayed
    };
    Ok((plain.to_owned(), name))
}

/// Removes user name and password from an address, for messages.
pub(crate) fn without_login(address: &str) -> String {
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), address),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or(authority);
    format!("{scheme}{host}{path}")
}

fn token<V>(
    chosen: Option<String>,
    environment: &Environment<V>,
) -> Result<Option<String>, HubError>
where
    V: Fn(&str) -> Option<OsString>,
{
    let token = chosen
        .or_else(|| environment.text(TOKEN_VARIABLE))
        .or_else(|| environment.text("HUGGING_FACE_HUB_TOKEN"))
        .or_else(|| {
            let file = environment
                .path("HF_TOKEN_PATH")
                .or_else(|| Some(environment.hf_home()?.join("token")))?;
            read_token(&file)
        });
    match token {
        // The token becomes a header value, so control characters are refused.
        Some(token) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err(HubError::BadOption {
                name: TOKEN_VARIABLE,
                value: "(not shown)".to_owned(),
                expected: "a token of letters, digits and underscores",
            })
        }
        token => Ok(token),
    }
}

fn read_token(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let token = text.trim();
    (!token.is_empty()).then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Variables<'a> = &'a [(&'a str, &'a str)];

    fn resolve(options: HubOptions, variables: Variables) -> Result<ResolvedHubOptions, HubError> {
        options.resolve_in(&Environment {
            variable: |name: &str| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.into())
            },
            home: Some("/home/someone".into()),
        })
    }

    #[test]
    #[cfg(unix)]
    fn cache_location_matches_other_tools() {
        let cases: &[(Variables, &str)] = &[
            (&[], "/home/someone/.cache/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HF_HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/h/hub"),
            (&[("HF_HOME", "~/h")], "/home/someone/h/hub"),
            (&[("HUGGINGFACE_HUB_CACHE", "/c"), ("HF_HOME", "/h")], "/c"),
            (
                &[("HF_HUB_CACHE", "/n"), ("HUGGINGFACE_HUB_CACHE", "/c")],
                "/n",
            ),
            (&[("HF_HUB_CACHE", ""), ("HF_HOME", "/h")], "/h/hub"),
        ];
        for (variables, expected) in cases {
            let resolved = resolve(HubOptions::default(), variables).unwrap();
            assert_eq!(resolved.cache_dir, Path::new(expected), "{variables:?}");
        }
        let chosen = HubOptions {
            cache_dir: Some("/mine".into()),
            ..HubOptions::default()
        };
        let resolved = resolve(chosen, &[("HF_HUB_CACHE", "/n")]).unwrap();
        assert_eq!(resolved.cache_dir, Path::new("/mine"));
    }

    #[test]
    fn endpoint_is_validated_and_mirror_named() {
        for (variable, endpoint, named) in [
            ("", "https://huggingface.co", "the Hugging Face Hub"),
            ("https://m.example/", "https://m.example", "HF_ENDPOINT"),
            (
                "http://m.example/hf/",
                "http://m.example/hf",
                "m.example/hf",
            ),
        ] {
            let resolved = resolve(HubOptions::default(), &[("HF_ENDPOINT", variable)]).unwrap();
            assert_eq!(resolved.endpoint, endpoint);
            assert!(resolved.name.contains(named), "{}", resolved.name);
        }
        for hidden in ["https://bob:s3cret@m.example/hf", "bob:s3cret@m.example"] {
            let chosen = HubOptions {
                endpoint: Some(hidden.to_owned()),
                ..HubOptions::default()
            };
            let debug = format!("{chosen:?}");
            let message = match resolve(chosen, &[]) {
                Ok(resolved) => resolved.name,
                Err(error) => error.to_string(),
            };
            for text in [debug, message] {
                assert!(!text.contains("bob") && !text.contains("s3cret"), "{text}");
                assert!(text.contains("m.example"), "{text}");
            }
        }
        for wrong in ["m.example", "ftp://m.example", "https://", "https://a b"] {
            let refused = resolve(HubOptions::default(), &[("HF_ENDPOINT", wrong)]);
            let message = refused.err().map(|error| error.to_string()).unwrap();
            assert!(message.contains("HF_ENDPOINT"), "{message}");
        }
    }

    #[test]
    fn token_sources_have_precedence() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        std::fs::write(folder.path().join("token"), "of-the-home\n").unwrap();
        let named = folder.path().join("named");
        std::fs::write(&named, " of-the-path ").unwrap();
        let named = named.to_str().unwrap();
        let cases: [(Variables, Option<&str>); 6] = [
            (&[], None),
            (&[("HF_HOME", home)], Some("of-the-home")),
            (
                &[("HF_HOME", home), ("HF_TOKEN_PATH", named)],
                Some("of-the-path"),
            ),
            (
                &[("HF_HOME", home), ("HUGGING_FACE_HUB_TOKEN", "old")],
                Some("old"),
            ),
            (
                &[("HUGGING_FACE_HUB_TOKEN", "old"), ("HF_TOKEN", "new")],
                Some("new"),
            ),
            (
                &[("HUGGING_FACE_HUB_TOKEN", "old"), ("HF_TOKEN", " ")],
                Some("old"),
            ),
        ];
        for (variables, expected) in cases {
            let resolved = resolve(HubOptions::default(), variables).unwrap();
            assert_eq!(resolved.token.as_deref(), expected, "{variables:?}");
        }
        let broken = resolve(HubOptions::default(), &[("HF_TOKEN", "a\r\nHost: b")]);
        let message = broken.err().map(|error| error.to_string()).unwrap();
        assert!(message.contains("HF_TOKEN") && !message.contains("Host"));
    }

    #[test]
    fn either_variable_means_offline() {
        for (variable, value, offline) in [
            ("HF_HUB_OFFLINE", "1", true),
            ("HF_HUB_OFFLINE", "True", true),
            ("HF_HUB_OFFLINE", "0", false),
            ("LOQUAT_OFFLINE", "1", true),
            ("LOQUAT_OFFLINE", "", false),
        ] {
            let resolved = resolve(HubOptions::default(), &[(variable, value)]).unwrap();
            assert_eq!(resolved.offline, offline, "{variable}={value}");
        }
    }

    #[test]
    fn token_is_not_shown() {
        let options = HubOptions {
            token: Some("hf_secret".to_owned()),
            ..HubOptions::default()
        };
        assert!(!format!("{options:?}").contains("secret"));
    }
}
