//! Validates catalog entries.

use std::fmt;

use super::entry::{CatalogEntry, DownloadSource, ModelForm, PackagePart};
use crate::{FileKind, StoreError};

/// Names the catalog file in errors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checker<'a> {
    pub file: &'a str,
}

impl Checker<'_> {
    pub(super) fn invalid(&self, at: impl fmt::Display, problem: impl fmt::Display) -> StoreError {
        StoreError::Catalog {
            file: self.file.to_owned(),
            at: at.to_string(),
            problem: problem.to_string(),
        }
    }

    pub(super) fn entry(&self, entry: &CatalogEntry) -> Result<(), StoreError> {
        let require = |valid: bool, problem: &str| {
            if valid {
                Ok(())
            } else {
                Err(self.invalid(entry, problem))
            }
        };
        require(is_name(&entry.name), "name must be a plain word")?;
        require(!entry.tags.is_empty(), "tags must not be empty")?;
        require(
            entry.tags.iter().all(|tag| is_name(tag)),
            "tags must be plain words",
        )?;
        require(!entry.family.is_empty(), "family must not be empty")?;
        require(!entry.licence.is_empty(), "licence must not be empty")?;
        require(entry.parameters > 0, "parameters must not be 0")?;
        let active = entry.active_parameters.unwrap_or(1);
        require(
            (1..=entry.parameters).contains(&active),
            "active_parameters must be between 1 and parameters",
        )?;
        require(entry.context > 0, "context must not be 0")?;
        require(entry.kv_bytes_per_token() > 0, "kv must not be 0")?;
        require(
            entry.kv.window.is_some() == entry.kv.full_layers.is_some()
                && entry.kv.full_layers.unwrap_or(0) <= entry.kv.layers,
            "kv must have both window and full_layers (at most layers), or neither",
        )?;
        require(!entry.forms.is_empty(), "forms must not be empty")?;
        for (number, form) in entry.forms.iter().enumerate() {
            let at = format!(
                "{entry}, form {} ({} {})",
                number + 1,
                form.kind,
                form.quant
            );
            check_form(form).map_err(|problem| self.invalid(at, problem))?;
        }
        Ok(())
    }
}

type CheckResult = Result<(), &'static str>;

fn require(valid: bool, problem: &'static str) -> CheckResult {
    if valid { Ok(()) } else { Err(problem) }
}

fn check_form(form: &ModelForm) -> CheckResult {
    require(!form.quant.is_empty(), "quant must not be empty")?;
    require(
        form.file.is_some() == (form.kind == FileKind::Gguf),
        "file is required for gguf, and only for gguf",
    )?;
    require(
        form.file.as_deref().is_none_or(is_name),
        "file must be a plain file name",
    )?;
    require(
        form.sha256.as_deref().is_none_or(is_sha256),
        "sha256 must be 64 lower-case hexadecimal digits",
    )?;
    require(
        form.sha256.is_none() || form.file.is_some(),
        "sha256 requires file",
    )?;
    require(
        form.mmproj.is_none() || form.kind == FileKind::Gguf,
        "mmproj is only for gguf",
    )?;
    require(form.bytes != Some(0), "bytes must not be 0")?;
    require(!form.sources.is_empty(), "sources must not be empty")?;
    form.sources.iter().try_for_each(|source| match source {
        DownloadSource::Hub {
            repo,
            revision,
            file,
        } => check_hub(repo, revision.as_deref(), file.as_deref()),
        DownloadSource::PythonPackages { parts } => check_packages(form, parts),
    })
}

fn check_hub(repo: &str, revision: Option<&str>, file: Option<&str>) -> CheckResult {
    require(is_repo(repo), "repo must be owner/name")?;
    require(
        revision.is_none_or(is_revision),
        "revision must be a plain word",
    )?;
    require(
        file.is_none_or(is_path),
        "file must be a path inside the repository",
    )
}

/// A package index states no hash of the assembled file, so the catalog must.
fn check_packages(form: &ModelForm, parts: &[PackagePart]) -> CheckResult {
    require(
        form.sha256.is_some(),
        "sha256 is required for python-packages",
    )?;
    for part in parts {
        require(is_name(&part.package), "package must be a plain word")?;
        require(is_name(&part.version), "version must be a plain word")?;
        require(!part.member.is_empty(), "member must not be empty")?;
    }
    let sum = parts
        .iter()
        .try_fold(0_u64, |sum, part| sum.checked_add(part.size));
    require(
        sum.is_some_and(|sum| sum > 0) && sum == form.bytes,
        "bytes must be the sum of each source's parts",
    )
}

/// Safe as a file name and as a command-line argument.
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte);
    text.bytes().all(plain) && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}

/// `owner/name`.
pub(crate) fn is_repo(text: &str) -> bool {
    match text.split_once('/') {
        Some((owner, name)) => is_name(owner) && is_name(name),
        None => false,
    }
}

/// A branch name may contain slashes.
pub(crate) fn is_revision(text: &str) -> bool {
    text.split('/').all(is_name)
}

/// A relative path without `..`.
pub(crate) fn is_path(text: &str) -> bool {
    let plain =
        |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\\');
    text.split('/').all(plain)
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}
