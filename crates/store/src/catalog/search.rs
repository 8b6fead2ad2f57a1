//! Catalog search and typo suggestions.

use super::{Catalog, CatalogEntry};

/// Words at least this similar count as a typo: `lama` for `llama`, not `phi` for `pi`.
const MIN_SIMILARITY: f64 = 0.84;
const SUGGESTIONS: usize = 3;

impl Catalog {
    /// Entries that match every word (name, tags, family, licence, kind, quant), best first. No
    /// words match everything.
    pub fn search(&self, words: &[&str]) -> Vec<&CatalogEntry> {
        let words: Vec<String> = words.iter().map(|word| word.to_lowercase()).collect();
        let mut found: Vec<(u32, &CatalogEntry)> = self
            .entries
            .iter()
            .filter_map(|entry| Some((score(entry, &words)?, entry)))
            .collect();
        // A stable sort keeps the catalog's order among equals.
        found.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
        found.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Names similar to `reference`, most similar first.
    pub(crate) fn suggest(&self, reference: &str) -> Vec<String> {
        let reference = reference.to_lowercase();
        let name = reference.split(':').next().unwrap_or_default();
        let mut similar: Vec<(f64, String)> = Vec::new();
        for entry in &self.entries {
            let name_similarity = match strsim::jaro_winkler(name, &entry.name) {
                similarity if similarity >= MIN_SIMILARITY => similarity,
                _ => continue,
            };
            let full_similarities = entry
                .tags
                .iter()
                .map(|tag| strsim::jaro_winkler(&reference, &format!("{}:{tag}", entry.name)));
            similar.push((
                name_similarity + full_similarities.fold(0.0, f64::max),
                entry.to_string(),
            ));
        }
        similar.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        similar.truncate(SUGGESTIONS);
        similar.into_iter().map(|(_, name)| name).collect()
    }
}

/// How well the words match the entry; `None` if one of them does not.
fn score(entry: &CatalogEntry, words: &[String]) -> Option<u32> {
    let fields = fields(entry);
    let scores = words.iter().map(|word| {
        let best = fields.iter().map(|field| match_score(field, word)).max();
        best.filter(|score| *score > 0)
    });
    scores.sum()
}

fn fields(entry: &CatalogEntry) -> Vec<String> {
    let mut fields = vec![
        entry.to_string(),
        entry.name.clone(),
        entry.family.clone(),
        entry.licence.clone(),
        entry.kind.name().to_owned(),
    ];
    fields.extend(entry.tags.iter().cloned());
    for form in &entry.forms {
        fields.extend([form.kind.name().to_owned(), form.quant.clone()]);
    }
    fields.iter().map(|field| field.to_lowercase()).collect()
}

fn match_score(field: &str, word: &str) -> u32 {
    match () {
        _ if field == word => 4,
        _ if field.starts_with(word) => 3,
        _ if field.contains(word) => 2,
        _ if strsim::jaro_winkler(field, word) >= MIN_SIMILARITY => 1,
        _ => 0,
    }
}
