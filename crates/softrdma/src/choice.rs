//! Which links a program sees, and in which order.
//!
//! By default all, oldest first. A person chooses with [`VARIABLE`]: programs take the first
//! device, or the first that has an address, and not every one has an option for another.

use std::env;
use std::sync::{Once, OnceLock};

use broker::link::LinkInfo;

use crate::process::report;

/// Names of links with commas between them: a program sees these only, in this order.
pub const VARIABLE: &str = "SOFTRDMA_DEVICES";

/// Those of `links` that this process is to see, in its order. An empty variable is none.
pub fn visible(links: Vec<LinkInfo>) -> Vec<LinkInfo> {
    chosen(links, wish())
}

/// The same for who lists devices: a wish that leaves none is told, once.
pub(crate) fn listed(links: Vec<LinkInfo>) -> Vec<LinkInfo> {
    static TOLD: Once = Once::new();
    let are_some = !links.is_empty();
    let shown = visible(links);
    if are_some && shown.is_empty() {
        TOLD.call_once(|| report(&names_none()));
    }
    shown
}

/// What a wish comes to that leaves no link.
pub(crate) fn names_none() -> String {
    let wish = wish().unwrap_or_default();
    format!("{VARIABLE}={wish} names no link that there is: `softrdma link show` lists them")
}

/// The value of the variable, read once: a program may change its environment while another thread
/// reads it.
pub(crate) fn wish() -> Option<&'static str> {
    static WISH: OnceLock<Option<String>> = OnceLock::new();
    WISH.get_or_init(|| env::var(VARIABLE).ok()).as_deref()
}

/// Whether somebody chose, so that there may be links that this process does not see.
pub(crate) fn is_made() -> bool {
    !names(wish()).is_empty()
}

/// The names in a wish.
fn names(wish: Option<&str>) -> Vec<&str> {
    let names = wish.unwrap_or_default().split(',').map(str::trim);
    names.filter(|name| !name.is_empty()).collect()
}

fn chosen(mut links: Vec<LinkInfo>, wish: Option<&str>) -> Vec<LinkInfo> {
    let names = names(wish);
    if names.is_empty() {
        return links;
    }
    let mut shown = Vec::new();
    for name in names {
        match links.iter().position(|link| link.name == name) {
            Some(at) => shown.push(links.remove(at)),
            None => tracing::debug!(name, "{VARIABLE} names what is no link, or names it twice"),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use broker::link::LinkKind;
    use wire::Mtu;

    use super::*;

    fn shown(wish: Option<&str>) -> Vec<String> {
        let link = |name: &str| LinkInfo {
            name: name.into(),
            kind: LinkKind::Rxe,
            index: 0,
            netdev: "lo".into(),
            netdev_index: 1,
            mac: [0; 6],
            netdev_mtu: 65536,
            max_mtu: Mtu::B4096,
            active_mtu: Mtu::B4096,
            up: true,
            carrier: true,
            gids: Vec::new(),
            iwarp: None,
        };
        let links = ["rxe0", "siw0", "rxe1"].map(link).to_vec();
        let shown = chosen(links, wish).into_iter();
        shown.map(|link| link.name).collect()
    }

    #[test]
    fn all_are_seen_unless_somebody_chose() {
        for wish in [None, Some(""), Some(" , ")] {
            assert_eq!(shown(wish), ["rxe0", "siw0", "rxe1"]);
        }
    }

    #[test]
    fn what_was_chosen_is_seen_in_its_order_and_once() {
        assert_eq!(shown(Some("siw0,rxe0")), ["siw0", "rxe0"]);
        assert_eq!(shown(Some("siw0, nothing, siw0")), ["siw0"]);
        assert_eq!(shown(Some("nothing")), [""; 0]);
    }
}
