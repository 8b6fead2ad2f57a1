//! Which addresses media may be fetched from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ureq::http::Uri;

/// A host of the configuration's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    scheme: &'static str,
    /// In lower case; an IPv6 address in brackets.
    host: String,
    /// Only hosts below `host`.
    subdomains: bool,
    port: u16,
}

impl AllowedHost {
    /// Parses `example.org`, `*.example.org`, `example.org:8443` or `http://192.0.2.1:8080`.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = match text.split_once("://") {
            None => ("https", text),
            Some(("https", rest)) => ("https", rest),
            Some(("http", rest)) => ("http", rest),
            Some(_) => return None,
        };
        let (subdomains, rest) = match rest.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let uri: Uri = format!("{scheme}://{rest}").parse().ok()?;
        let address = Address::from_uri(&uri)?;
        // Neither a path nor another wildcard.
        let bare = !rest.contains(['/', '#', '?', '*']);
        let is_name = address.host.contains('.') && address.ip.is_none();
        (bare && (is_name || !subdomains)).then_some(Self {
            scheme,
            host: address.host,
            subdomains,
            port: address.port,
        })
    }

    fn allows(&self, address: &Address) -> bool {
        let host = if self.subdomains {
            let above = address.host.strip_suffix(&self.host);
            above.is_some_and(|above| above.ends_with('.'))
        } else {
            address.host == self.host
        };
        host && address.scheme == self.scheme && address.port == self.port
    }
}

/// Where a URL leads.
#[derive(Debug, PartialEq, Eq)]
pub struct Address {
    scheme: &'static str,
    host: String,
    port: u16,
    /// If the host is an address literal.
    pub ip: Option<IpAddr>,
}

impl Address {
    /// `None` unless it is an HTTP URL without a user name.
    pub fn from_uri(uri: &Uri) -> Option<Self> {
        let (scheme, default) = match uri.scheme_str()? {
            "https" => ("https", 443),
            "http" => ("http", 80),
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        let has_port = authority.as_str().len() > authority.host().len();
        let port = match authority.port_u16() {
            Some(port) => port,
            None if has_port => return None,
            None => default,
        };
        Some(Self {
            scheme,
            host: authority.host().to_ascii_lowercase(),
            port,
            ip: literal(authority.host()),
        })
    }

    pub fn is_listed(&self, hosts: &[AllowedHost]) -> bool {
        hosts.iter().any(|host| host.allows(self))
    }
}

/// The address that a host is, if it is no name.
pub fn literal(host: &str) -> Option<IpAddr> {
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host).parse().ok()
}

/// Whether an address is one of the public internet, which a name may resolve to.
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

/// By the IANA registry of special-purpose addresses.
fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let special = ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_private()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_documentation()
        || a == 0
        || a >= 240
        // Carrier-grade translation.
        || a == 100 && (64..128).contains(&b)
        // Protocol assignments.
        || (a, b, c) == (192, 0, 0)
        // Benchmarks.
        || a == 198 && (18..20).contains(&b);
    !special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    // Others are reserved, local or multicast.
    let is_global = a & 0xe000 == 0x2000;
    let is_special = matches!(
        (a, b),
        // Teredo and other protocol assignments, documentation, 6to4.
        (0x2001, 0..0x0200) | (0x2001, 0x0db8) | (0x2002, _) | (0x3fff, 0..0x1000)
    );
    is_global && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(list: &[&str], url: &str) -> bool {
        let hosts: Vec<_> = list
            .iter()
            .filter_map(|host| AllowedHost::parse(host))
            .collect();
        assert_eq!(hosts.len(), list.len(), "{list:?}");
        let uri: Option<Uri> = url.parse().ok();
        let address = uri.and_then(|uri| Address::from_uri(&uri));
        address.is_some_and(|address| address.is_listed(&hosts))
    }

    #[test]
    fn only_listed_hosts_match() {
        let list = [
            "example.org",
            "*.cdn.example",
            "http://127.0.0.1:8080",
            "https://a.example:8443",
            "http://[::1]",
        ];
        for (url, expected) in [
            ("https://example.org/a.png", true),
            ("https://EXAMPLE.org:443/a.png?b=c", true),
            ("http://example.org/a.png", false),
            ("https://example.org:444/a.png", false),
            ("https://www.example.org/a.png", false),
            ("https://example.org.evil.example/a.png", false),
            ("https://example.org@evil.example/a.png", false),
            ("https://user:secret@example.org/a.png", false),
            ("https://example.org:/a.png", false),
            ("https://img.cdn.example/a.png", true),
            ("https://a.b.cdn.example/a.png", true),
            ("https://cdn.example/a.png", false),
            ("https://evilcdn.example/a.png", false),
            ("http://127.0.0.1:8080/a.png", true),
            ("https://127.0.0.1:8080/a.png", false),
            ("http://127.0.0.1/a.png", false),
            ("https://a.example:8443/", true),
            ("https://a.example/", false),
            ("http://[::1]/a.png", true),
            ("http://[::1]:81/a.png", false),
            ("ftp://example.org/a.png", false),
            ("//example.org/a.png", false),
        ] {
            assert_eq!(listed(&list, url), expected, "{url}");
        }
    }

    #[test]
    fn hosts_of_the_list_are_bare() {
        for text in [
            "",
            "*",
            "*.",
            "a b",
            "ftp://a",
            "https://a/b",
            "https://a/",
            "a?b",
            "u@a",
            "*.10.0.0.1",
            "https://",
            "a:b",
            "a:99999",
            "*.org.*",
        ] {
            assert_eq!(AllowedHost::parse(text), None, "{text}");
        }
    }

    #[test]
    fn addresses_of_this_network_are_not_public() {
        for (ip, expected) in [
            ("8.8.8.8", true),
            ("172.32.0.1", true),
            ("100.128.0.1", true),
            ("2606:4700::1111", true),
            ("0.0.0.0", false),
            ("0.1.2.3", false),
            ("10.1.2.3", false),
            ("100.64.0.1", false),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("172.16.0.1", false),
            ("192.0.0.1", false),
            ("192.168.1.1", false),
            ("198.19.0.1", false),
            ("203.0.113.9", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:8.8.8.8", false),
            ("64:ff9b::7f00:1", false),
            ("fc00::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("2001::1", false),
            ("2001:db8::1", false),
            ("2002:7f00:1::", false),
        ] {
            let ip: IpAddr = ip.parse().expect("an address");
            assert_eq!(is_public(ip), expected, "{ip}");
        }
    }
}
