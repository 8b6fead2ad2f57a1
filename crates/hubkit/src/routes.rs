//! Routes requests to responses.

use std::io::{self, BufReader};
use std::net::TcpStream;
use std::ops::ControlFlow;

use crate::http::{self, Head};
use crate::response::Response;
use crate::{Access, FakeFile, FakeRepo, HubFault, RecordedRequest, ServerState, Site, TOKEN};

/// Serves the requests of one connection.
pub(crate) fn serve(
    connection: &TcpStream,
    state: &ServerState,
    is_storage: bool,
) -> io::Result<()> {
    let mut input = BufReader::new(connection);
    while let Some(head) = http::read(&mut input)? {
        let response = match Route::parse(state, &head.path, is_storage) {
            Some(route) => {
                let fault = state.record(route.request(&head));
                respond(state, &head, &route, fault)
            }
            None => Response::error(404, "RepoNotFound"),
        };
        if let ControlFlow::Break(()) = response.send(connection, &head, state)? {
            return Ok(());
        }
    }
    Ok(())
}

/// A parsed address.
struct Route<'a> {
    site: Site,
    repo: &'a FakeRepo,
    revision: &'a str,
    path: Option<&'a str>,
}

impl<'a> Route<'a> {
    fn parse(state: &'a ServerState, address: &'a str, is_storage: bool) -> Option<Self> {
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
        // A revision may contain slashes, so match the known ones first.
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

    fn request(&self, head: &Head) -> RecordedRequest {
        let header = |name| head.header(name).map(str::to_owned);
        RecordedRequest {
            site: self.site,
            method: head.method.clone(),
            file: self.path.map(str::to_owned),
            range: header("range"),
            authorization: header("authorization"),
            user_agent: header("user-agent"),
        }
    }
}

fn respond(
    state: &ServerState,
    head: &Head,
    route: &Route<'_>,
    fault: Option<HubFault>,
) -> Response {
    if let Some(HubFault::Status(status, headers)) = fault {
        return Response::empty(status, headers);
    }
    let repo = route.repo;
    if let Some(refusal) = refusal(head, route) {
        return refusal;
    }
    let known = repo.refs.iter().chain([&repo.commit]);
    if !known.into_iter().any(|known| known == route.revision) {
        return Response::error(404, "RevisionNotFound");
    }
    let Some(path) = route.path else {
        let text = match route.site {
            Site::Tree => tree(repo),
            _ => listing(repo),
        };
        return Response::content(200, text.into_bytes());
    };
    let Some(file) = repo.files.iter().find(|file| file.path == path) else {
        return Response::error(404, "EntryNotFound");
    };
    match route.site {
        Site::Resolve => redirect(state, repo, file, fault),
        Site::Large => Response::file(file, head, fault),
        _ => Response::file(file, head, fault).with("X-Repo-Commit", repo.commit.clone()),
    }
}

fn refusal(head: &Head, route: &Route<'_>) -> Option<Response> {
    let has_token = head.header("authorization") == Some(&format!("Bearer {TOKEN}"));
    let is_file = route.path.is_some();
    match route.repo.access {
        // The second origin trusts the signed address.
        _ if route.site == Site::Large => None,
        Access::Open => None,
        Access::Private if has_token => None,
        Access::Private => Some(Response::error(401, "RepoNotFound")),
        Access::Gated | Access::GatedForAll if !is_file => None,
        Access::Gated if has_token => None,
        Access::Gated | Access::GatedForAll => {
            let status = if has_token { 403 } else { 401 };
            Some(Response::error(status, "GatedRepo"))
        }
    }
}

fn redirect(
    state: &ServerState,
    repo: &FakeRepo,
    file: &FakeFile,
    fault: Option<HubFault>,
) -> Response {
    let etag = match fault {
        Some(HubFault::Changed) => "0".repeat(file.etag().len()),
        _ => file.etag(),
    };
    let mut headers = vec![("X-Repo-Commit", repo.commit.clone())];
    let route = format!("{}/{}/{}", repo.id, repo.commit, percent_encode(&file.path));
    if file.large {
        headers.push(("X-Linked-ETag", format!("\"{etag}\"")));
        headers.push(("X-Linked-Size", file.content.len().to_string()));
        let location = format!("http://{}/{route}?signature=1", state.storage);
        headers.push(("Location", location));
        return Response::empty(302, headers);
    }
    headers.push(("ETag", format!("\"{etag}\"")));
    let location = format!("/api/resolve-cache/models/{route}?etag={etag}");
    headers.push(("Location", location));
    Response::empty(307, headers)
}

fn percent_encode(path: &str) -> String {
    path.replace('%', "%25").replace(' ', "%20")
}

fn listing(repo: &FakeRepo) -> String {
    let files: Vec<String> = repo.files.iter().map(|file| sibling(repo, file)).collect();
    format!(
        r#"{{"id":{},"sha":"{}","private":false,"siblings":[{}]}}"#,
        quoted(&repo.id),
        repo.commit,
        files.join(",")
    )
}

fn sibling(repo: &FakeRepo, file: &FakeFile) -> String {
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

fn tree(repo: &FakeRepo) -> String {
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
