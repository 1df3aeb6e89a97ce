//! The discovery service.

use super::{Checker, Result};
use crate::file;
use crate::model::{Discovery, Referral, Transport};
use nvme_proto::nqn::Nqn;
use toml::Spanned;

/// The port that IANA gives to discovery.
pub(super) const PORT: u16 = 8009;
/// Referrals to other targets.
const REFERRALS_MAX: usize = 64;

impl Checker<'_> {
    pub(super) fn discovery(&self, file: &file::Discovery) -> Result<Discovery> {
        let own = |value: &Spanned<String>| {
            let nqn = self.nqn("nqn", value)?;
            if nqn != Nqn::DISCOVERY {
                self.own_name(value)?;
            }
            Ok(nqn)
        };
        self.at_most("referrals", file.referral.iter().map(Spanned::span), REFERRALS_MAX)?;
        let referrals = file.referral.iter().map(|it| self.referral(it)).collect::<Result<Vec<_>>>()?;
        let names = referrals.iter().map(|it| format!("{} over {}", it.address, it.transport));
        self.unique("referral", file.referral.iter().map(Spanned::span).zip(names))?;
        Ok(Discovery {
            nqn: file.nqn.as_ref().map(own).transpose()?,
            mdns: file.mdns.unwrap_or(false),
            referrals,
        })
    }

    fn referral(&self, spanned: &Spanned<file::Referral>) -> Result<Referral> {
        let file = spanned.as_ref();
        let transports = [("rdma", Transport::Rdma), ("tcp", Transport::Tcp)];
        let transport = self.word("transport", Some(&file.transport), &transports, Transport::Tcp)?;
        let address = self.address(&file.address, PORT)?;
        if address.ip().is_unspecified() || address.port() == 0 {
            return self.error(&file.address, "a referral names the address and port of another target");
        }
        let nqn = file.nqn.as_ref().map_or(Ok(Nqn::DISCOVERY), |nqn| self.nqn("nqn", nqn))?;
        Ok(Referral { transport, address, nqn })
    }
}
