//! The group of gateways: its state, and what moves.

use super::{Daemon, Reply};
use crate::control::protocol::Fault;
use crate::control::request::cluster::{ClusterMove, ClusterRemove, ClusterRemoveItem, ClusterRequest};

impl Daemon {
    pub(super) fn on_cluster(&mut self, request: &ClusterRequest) -> Result<Reply, Fault> {
        match request {
            ClusterRequest::Status {} => super::done(&self.cluster_answer()?),
            ClusterRequest::Move(ClusterMove { group, gateway }) => {
                Ok(self.move_group(*group, gateway)?.into())
            }
            ClusterRequest::Remove(ClusterRemove { gateway }) => Ok(self.remove_gateway(gateway)?.into()),
            ClusterRequest::RemoveItem(ClusterRemoveItem { item }) => Ok(self.remove_left_out(item)?.into()),
        }
    }
}
