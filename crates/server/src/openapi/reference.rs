//! Generates docs/api.md from the description.

use std::fmt::Write;

use super::amend::{FATES, body_schema};
use super::document;

const OPENING: &str = "\
# Fields without effect

Fields of the dialects that this server accepts or refuses without acting on them. Everything else
about the API is at `/docs` and in `/openapi.json` of a running server. This page is generated from
the request types in `crates/server/src`: a test fails if it is out of date, and
`LOQUAT_WRITE_DOCS=1 cargo test -p loquat-server --lib openapi::` updates it. For how to run and
operate the server see [serve.md](serve.md).

An **ignored** field does not affect the response. The response names it in the header
`x-loquat-ignored`. A name without a path is that of a field that can occur in several places, such
as `cache_control` of any block. A **refused** field causes an error with status 400 that names it.
`null` counts as omitted, and so do `false`, an empty text and an empty list for a refused field.

An unknown field is refused if at most two letters differ from a known field (one in short names),
and the error suggests that field. Any other unknown field is ignored, at every depth, and the header
names it by its path without indices: `messages.content.x`. With `strict_fields` in the
[configuration](config.md), every unknown field is refused. So is a request with more than 1000
distinct unknown fields.

Other differences from the request have headers of their own: `x-loquat-max-tokens` is the most
tokens of the reply if the request's limit exceeds the room that its prompt leaves,
`x-loquat-model` is the model that serves a request for an unknown one, and `x-loquat-system:
joined` says that later system messages were joined with the first, because the model's template
does not take them.
";

fn page() -> String {
    let document = document();
    let mut page = OPENING.to_owned();
    let paths = document["paths"].as_object().expect("paths");
    for (path, operations) in paths {
        for (verb, operation) in operations.as_object().expect("operations") {
            let Some(schema) = body_schema(operation) else {
                continue;
            };
            let fates = &document["components"]["schemas"][schema][FATES];
            // A body that is a list of objects has no fields of its own.
            let Some(fates) = fates.as_array().filter(|fates| !fates.is_empty()) else {
                continue;
            };
            let verb = verb.to_uppercase();
            let _ = write!(
                page,
                "\n## {verb} {path}\n\n| field | what happens | why |\n|---|---|---|\n"
            );
            for fate in fates {
                let [field, fate, why] = ["field", "fate", "why"].map(|name| {
                    let text = fate[name].as_str();
                    text.expect("text")
                });
                let _ = writeln!(page, "| `{field}` | {fate} | {why} |");
            }
        }
    }
    page
}

#[test]
fn api_page_is_up_to_date() {
    let tests = "-p loquat-server --lib openapi::";
    loquat_testkit::docs::assert_current("docs/api.md", &page(), tests);
}
