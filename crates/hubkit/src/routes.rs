//! Which request gets which answer.

use std::io::{self, BufReader};
use std::net::TcpStream;
use std::ops::ControlFlow;

use crate::answer::Answer;
use crate::http::{self, Head};
use crate::{Access, Fault, File, Repo, Request, Site, State, TOKEN};

/// Answers the requests of one connection.
pub(crate) fn serve(connection: &TcpStream, state: &State, is_storage: bool) -> io::Result<()> {
    let mut input = BufReader::new(connection);
    while let Some(head) = http::read(&mut input)? {
        let answer = match Place::of(state, &head.path, is_storage) {
            Some(place) => {
                let fault = state.arrived(place.request(&head));
                answer(state, &head, &place, fault)
            }
            None => Answer::error(404, "RepoNotFound"),
        };
        if let ControlFlow::Break(()) = answer.send(connection, &head, state)? {
            return Ok(());
        }
    }
    Ok(())
}

/// What an address means.
struct Place<'a> {
    site: Site,
    repo: &'a Repo,
    revision: &'a str,
    path: Option<&'a str>,
}

impl<'a> Place<'a> {
    fn of(state: &'a State, address: &'a str, is_storage: bool) -> Option<Self> {
        let address = address.trim_start_matches('/');
        let (site, rest) = if is_storage {
            (Site::Large, address)
        } else if let Some(rest) = address.strip_prefix("api/resolve-cache/models/") {
            (Site::Small, rest)
        } else if let Some(rest) = address.strip_prefix("api/models/") {
            (Site::Api, rest)
        } else {
            (Site::Resolve, address)
        };
        let mut found = state.repos.iter().filter_map(|repo| {
            let rest = rest.strip_prefix(&repo.id)?;
            (rest.is_empty() || rest.starts_with('/')).then(|| (repo, rest.trim_start_matches('/')))
        });
        let (repo, rest) = found.next()?;
        let (site, rest) = match (site, rest.strip_prefix("tree/")) {
            (Site::Api, Some(rest)) => (Site::Tree, rest),
            _ => (site, rest),
        };
        let rest = match site {
            Site::Api => rest.strip_prefix("revision/").unwrap_or("main"),
            Site::Resolve => rest.strip_prefix("resolve/")?,
            Site::Tree | Site::Small | Site::Large => rest,
        };
        // A revision may itself have a slash in it; the repository knows its own.
        let known = repo.refs.iter().chain([&repo.commit]).find(|known| {
            let after = rest.strip_prefix(known.as_str());
            after.is_some_and(|after| after.is_empty() || after.starts_with('/'))
        });
        let (revision, path) = match (known, site) {
            (Some(known), _) => rest.split_at(known.len()),
            (None, Site::Api | Site::Tree) => (rest, ""),
            (None, _) => rest.split_once('/')?,
        };
        let path = path.trim_start_matches('/');
        Some(Self {
            site,
            repo,
            revision,
            path: (!path.is_empty()).then_some(path),
        })
    }

    fn request(&self, head: &Head) -> Request {
        let header = |name| head.header(name).map(str::to_owned);
        Request {
            site: self.site,
            method: head.method.clone(),
            file: self.path.map(str::to_owned),
            range: header("range"),
            authorization: header("authorization"),
            user_agent: header("user-agent"),
        }
    }
}

fn answer(state: &State, head: &Head, place: &Place<'_>, fault: Option<Fault>) -> Answer {
    if let Some(Fault::Status(status, headers)) = fault {
        return Answer::empty(status, headers);
    }
    let repo = place.repo;
    if let Some(refusal) = refusal(head, place) {
        return refusal;
    }
    let known = repo.refs.iter().chain([&repo.commit]);
    if !known.into_iter().any(|known| known == place.revision) {
        return Answer::error(404, "RevisionNotFound");
    }
    let Some(path) = place.path else {
        let text = match place.site {
            Site::Tree => tree(repo),
            _ => listing(repo),
        };
        return Answer::content(200, text.into_bytes());
    };
    let Some(file) = repo.files.iter().find(|file| file.path == path) else {
        return Answer::error(404, "EntryNotFound");
    };
    match place.site {
        Site::Resolve => redirect(state, repo, file, fault),
        Site::Large => Answer::file(file, head, fault),
        _ => Answer::file(file, head, fault).with("X-Repo-Commit", repo.commit.clone()),
    }
}

fn refusal(head: &Head, place: &Place<'_>) -> Option<Answer> {
    let has_token = head.header("authorization") == Some(&format!("Bearer {TOKEN}"));
    let is_file = place.path.is_some();
    match place.repo.access {
        // The second origin trusts the address that the hub gave out.
        _ if place.site == Site::Large => None,
        Access::Open => None,
        Access::Private if has_token => None,
        Access::Private => Some(Answer::error(401, "RepoNotFound")),
        Access::Gated | Access::GatedForAll if !is_file => None,
        Access::Gated if has_token => None,
        Access::Gated | Access::GatedForAll => {
            let status = if has_token { 403 } else { 401 };
            Some(Answer::error(status, "GatedRepo"))
        }
    }
}

fn redirect(state: &State, repo: &Repo, file: &File, fault: Option<Fault>) -> Answer {
    let etag = match fault {
        Some(Fault::Changed) => "0".repeat(file.etag().len()),
        _ => file.etag(),
    };
    let mut headers = vec![("X-Repo-Commit", repo.commit.clone())];
    let place = format!("{}/{}/{}", repo.id, repo.commit, escaped(&file.path));
    if file.large {
        headers.push(("X-Linked-ETag", format!("\"{etag}\"")));
        headers.push(("X-Linked-Size", file.content.len().to_string()));
        let location = format!("http://{}/{place}?signature=1", state.storage);
        headers.push(("Location", location));
        return Answer::empty(302, headers);
    }
    headers.push(("ETag", format!("\"{etag}\"")));
    let location = format!("/api/resolve-cache/models/{place}?etag={etag}");
    headers.push(("Location", location));
    Answer::empty(307, headers)
}

fn escaped(path: &str) -> String {
    path.replace('%', "%25").replace(' ', "%20")
}

fn listing(repo: &Repo) -> String {
    let files: Vec<String> = repo.files.iter().map(|file| sibling(repo, file)).collect();
    format!(
        r#"{{"id":{},"sha":"{}","private":false,"siblings":[{}]}}"#,
        quoted(&repo.id),
        repo.commit,
        files.join(",")
    )
}

fn sibling(repo: &Repo, file: &File) -> String {
    let name = quoted(&file.path);
    if !repo.lists_hashes {
        return format!(r#"{{"rfilename":{name}}}"#);
    }
    let size = file.claimed_size.unwrap_or(file.content.len() as u64);
    let etag = file.etag();
    if !file.large {
        return format!(r#"{{"rfilename":{name},"size":{size},"blobId":"{etag}"}}"#);
    }
    let pointer = crate::git_hash(etag.as_bytes());
    format!(
        r#"{{"rfilename":{name},"size":{size},"blobId":"{pointer}","lfs":{{"sha256":"{etag}","size":{size},"pointerSize":134}}}}"#
    )
}

fn tree(repo: &Repo) -> String {
    let files = repo.files.iter().map(|file| {
        let (name, size, etag) = (quoted(&file.path), file.content.len(), file.etag());
        let lfs = if file.large {
            format!(r#","lfs":{{"oid":"{etag}","size":{size},"pointerSize":134}}"#)
        } else {
            String::new()
        };
        format!(r#"{{"type":"file","path":{name},"size":{size},"oid":"{etag}"{lfs}}}"#)
    });
    format!("[{}]", files.collect::<Vec<_>>().join(","))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
