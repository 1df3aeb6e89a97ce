//! Connect: makes a controller (admin queue) or adds a queue to one (I/O queues).

use crate::fabrics::{command, record_format};
use crate::ident::{Cntlid, HostId, Qid};
use crate::nqn::{FIELD_LEN, Nqn};
use crate::opcode::FabricsType;
use crate::sqe::Sqe;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Byte offsets of the command's fields, as Invalid Parameters names them.
pub mod command_offset {
    /// FUSE and PSDT.
    pub const FLAGS: u16 = 1;
    /// RECFMT.
    pub const RECFMT: u16 = 40;
    /// QID.
    pub const QID: u16 = 42;
    /// SQSIZE.
    pub const SQSIZE: u16 = 44;
    /// CATTR.
    pub const CATTR: u16 = 46;
    /// KATO.
    pub const KATO: u16 = 48;
}

/// Byte offsets of the data's fields, as Invalid Parameters names them.
pub mod data_offset {
    /// HOSTID.
    pub const HOSTID: u16 = 0;
    /// CNTLID.
    pub const CNTLID: u16 = 16;
    /// SUBNQN.
    pub const SUBNQN: u16 = 256;
    /// HOSTNQN.
    pub const HOSTNQN: u16 = 512;
}

/// What the command itself says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Record format: 0.
    pub recfmt: u16,
    /// The queue.
    pub qid: Qid,
    /// SQSIZE: entries of the submission queue, 0's based as on the wire, as 0 is to be refused by name.
    pub sqsize_z: u16,
    /// CATTR.
    pub attributes: ConnectAttributes,
    /// Keep alive timeout in milliseconds; 0 is none. Admin queue only.
    pub kato_ms: u32,
}

/// CATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ConnectAttributes(pub u8);

impl ConnectAttributes {
    /// Bit 2: the host wants no submission queue flow control.
    pub const DISSQFC: Self = Self(1 << 2);
    /// Bit 3: the host may delete I/O queues one by one.
    pub const INDIVIOQDELS: Self = Self(1 << 3);

    /// Whether submission queue flow control is to be off.
    #[must_use]
    pub fn disables_sq_flow_control(self) -> bool {
        self.0 & Self::DISSQFC.0 != 0
    }
}

impl Connect {
    /// Reads the fields of the command, unchecked.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [cdw10, cdw11, kato_ms, ..] = sqe.dwords();
        Self {
            recfmt: record_format(sqe),
            qid: Qid((cdw10 >> 16) as u16),
            sqsize_z: cdw11 as u16,
            attributes: ConnectAttributes((cdw11 >> 16) as u8),
            kato_ms,
        }
    }

    /// The command; its SGL is the transport's to fill in.
    #[must_use]
    pub fn emit(&self) -> Sqe {
        let cdw10 = u32::from(self.recfmt) | u32::from(self.qid.0) << 16;
        let cdw11 = u32::from(self.sqsize_z) | u32::from(self.attributes.0) << 16;
        command(FabricsType::CONNECT).with_dwords([cdw10, cdw11, self.kato_ms, 0, 0, 0])
    }
}

/// The 1024 bytes that go with the command, as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Host identifier.
    pub hostid: [u8; 16],
    /// Controller identifier: [`Cntlid::DYNAMIC`], or the association's.
    pub cntlid: U16,
    reserved0: [u8; 238],
    /// Subsystem NQN.
    pub subnqn: [u8; FIELD_LEN],
    /// Host NQN.
    pub hostnqn: [u8; FIELD_LEN],
    reserved1: [u8; 256],
}

const _: () = {
    assert!(size_of::<ConnectData>() == ConnectData::LEN);
    assert!(core::mem::offset_of!(ConnectData, cntlid) == data_offset::CNTLID as usize);
    assert!(core::mem::offset_of!(ConnectData, subnqn) == data_offset::SUBNQN as usize);
    assert!(core::mem::offset_of!(ConnectData, hostnqn) == data_offset::HOSTNQN as usize);
};

impl ConnectData {
    /// Bytes on the wire.
    pub const LEN: usize = 1024;

    /// The data that say so.
    #[must_use]
    pub fn new(hostid: HostId, cntlid: Cntlid, subnqn: &Nqn, hostnqn: &Nqn) -> Self {
        Self {
            hostid: hostid.0,
            cntlid: cntlid.0.into(),
            subnqn: subnqn.to_field(),
            hostnqn: hostnqn.to_field(),
            ..Self::new_zeroed()
        }
    }

    /// Host identifier.
    #[must_use]
    pub fn hostid(&self) -> HostId {
        HostId(self.hostid)
    }

    /// Controller identifier.
    #[must_use]
    pub fn cntlid(&self) -> Cntlid {
        Cntlid(self.cntlid.get())
    }
}

/// DW0 of a successful response: the controller, and whether authentication comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The controller.
    pub cntlid: Cntlid,
    /// Bit 17 (ATR): authenticate before anything else.
    pub authentication_required: bool,
    /// Bit 18 (ASCR): authenticate before anything else, and concatenate a secure channel.
    pub secure_channel_required: bool,
}

impl Connected {
    /// Reads DW0.
    #[must_use]
    pub fn parse(dw0: u32) -> Self {
        Self {
            cntlid: Cntlid(dw0 as u16),
            authentication_required: dw0 >> 17 & 1 == 1,
            secure_channel_required: dw0 >> 18 & 1 == 1,
        }
    }

    /// DW0.
    #[must_use]
    pub fn emit(self) -> u32 {
        u32::from(self.cntlid.0)
            | u32::from(self.authentication_required) << 17
            | u32::from(self.secure_channel_required) << 18
    }
}

/// DW0 of a response with Connect Invalid Parameters: which field (IPO) of what (IATTR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidParameter {
    /// A field of the submission queue entry.
    Command(u16),
    /// A field of the data.
    Data(u16),
}

impl InvalidParameter {
    /// Reads DW0.
    #[must_use]
    pub fn parse(dw0: u32) -> Self {
        if dw0 >> 16 & 1 == 0 { Self::Command(dw0 as u16) } else { Self::Data(dw0 as u16) }
    }

    /// DW0.
    #[must_use]
    pub fn emit(self) -> u32 {
        match self {
            Self::Command(offset) => u32::from(offset),
            Self::Data(offset) => 1 << 16 | u32::from(offset),
        }
    }

    /// The field's name in the standard.
    #[must_use]
    pub fn field(self) -> Option<&'static str> {
        Some(match self {
            Self::Command(command_offset::FLAGS) => "FUSE or PSDT",
            Self::Command(command_offset::RECFMT) => "RECFMT",
            Self::Command(command_offset::QID) => "QID",
            Self::Command(command_offset::SQSIZE) => "SQSIZE",
            Self::Command(command_offset::CATTR) => "CATTR",
            Self::Command(command_offset::KATO) => "KATO",
            Self::Data(data_offset::HOSTID) => "HOSTID",
            Self::Data(data_offset::CNTLID) => "CNTLID",
            Self::Data(data_offset::SUBNQN) => "SUBNQN",
            Self::Data(data_offset::HOSTNQN) => "HOSTNQN",
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_the_standard_puts_them() {
        let connect = Connect {
            recfmt: 0,
            qid: Qid(3),
            sqsize_z: 127,
            attributes: ConnectAttributes(4),
            kato_ms: 0x0102_0304,
        };
        let sqe = connect.emit();
        assert_eq!(sqe.as_bytes()[..5], [0x7f, 0x40, 0, 0, 1]);
        assert_eq!(sqe.as_bytes()[40..52], [0, 0, 3, 0, 127, 0, 4, 0, 4, 3, 2, 1]);
        assert!(connect.attributes.disables_sq_flow_control());
    }

    #[test]
    fn an_invalid_parameter_names_its_field() {
        assert_eq!(InvalidParameter::Data(data_offset::SUBNQN).emit(), 0x0001_0100);
        assert_eq!(InvalidParameter::parse(0x0001_0100).field(), Some("SUBNQN"));
        assert_eq!(InvalidParameter::parse(44).field(), Some("SQSIZE"));
        assert_eq!(InvalidParameter::parse(2).field(), None);
    }

    #[test]
    fn connected_keeps_the_two_authentication_bits_apart() {
        let concatenate = Connected::parse(1 << 18 | 7);
        let expected =
            Connected { cntlid: Cntlid(7), authentication_required: false, secure_channel_required: true };
        assert_eq!((concatenate, concatenate.emit()), (expected, 1 << 18 | 7));
        let authenticate = Connected::parse(1 << 17 | 7);
        assert!(authenticate.authentication_required && !authenticate.secure_channel_required);
    }

    proptest! {
        #[test]
        fn parse_and_emit_are_inverse(bytes: [u8; 32], more: [u8; 32], dw0: u32) {
            let mut all = [0; 64];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&more);
            let connect = Connect::parse(&Sqe::read_from_bytes(&all).unwrap());
            prop_assert_eq!(Connect::parse(&connect.emit()), connect);
            prop_assert_eq!(InvalidParameter::parse(InvalidParameter::parse(dw0).emit()), InvalidParameter::parse(dw0));
            let connected = Connected::parse(dw0);
            prop_assert_eq!(Connected::parse(connected.emit()), connected);
        }
    }
}
