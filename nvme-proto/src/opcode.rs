//! Opcodes.

open_enum! {
    /// Admin commands.
    pub struct AdminOpcode: u8 {
        /// Delete I/O Submission Queue (not used by Fabrics).
        DELETE_IO_SQ = 0x00,
        /// Create I/O Submission Queue (not used by Fabrics).
        CREATE_IO_SQ = 0x01,
        /// Get Log Page.
        GET_LOG_PAGE = 0x02,
        /// Delete I/O Completion Queue (not used by Fabrics).
        DELETE_IO_CQ = 0x04,
        /// Create I/O Completion Queue (not used by Fabrics).
        CREATE_IO_CQ = 0x05,
        /// Identify.
        IDENTIFY = 0x06,
        /// Abort.
        ABORT = 0x08,
        /// Set Features.
        SET_FEATURES = 0x09,
        /// Get Features.
        GET_FEATURES = 0x0a,
        /// Asynchronous Event Request.
        ASYNC_EVENT_REQUEST = 0x0c,
        /// Namespace Management.
        NAMESPACE_MANAGEMENT = 0x0d,
        /// Firmware Commit.
        FIRMWARE_COMMIT = 0x10,
        /// Firmware Image Download.
        FIRMWARE_DOWNLOAD = 0x11,
        /// Device Self-test.
        DEVICE_SELF_TEST = 0x14,
        /// Namespace Attachment.
        NAMESPACE_ATTACHMENT = 0x15,
        /// Keep Alive.
        KEEP_ALIVE = 0x18,
        /// Directive Send.
        DIRECTIVE_SEND = 0x19,
        /// Directive Receive.
        DIRECTIVE_RECEIVE = 0x1a,
        /// Cross-Controller Reset.
        CROSS_CONTROLLER_RESET = 0x38,
        /// Fabrics commands.
        FABRICS = 0x7f,
        /// Format NVM.
        FORMAT_NVM = 0x80,
        /// Security Send.
        SECURITY_SEND = 0x81,
        /// Security Receive.
        SECURITY_RECEIVE = 0x82,
        /// Sanitize.
        SANITIZE = 0x84,
    }
}

open_enum! {
    /// I/O commands of the NVM command set.
    pub struct NvmOpcode: u8 {
        /// Flush.
        FLUSH = 0x00,
        /// Write.
        WRITE = 0x01,
        /// Read.
        READ = 0x02,
        /// Write Uncorrectable.
        WRITE_UNCORRECTABLE = 0x04,
        /// Compare.
        COMPARE = 0x05,
        /// Write Zeroes.
        WRITE_ZEROES = 0x08,
        /// Dataset Management.
        DATASET_MANAGEMENT = 0x09,
        /// Verify.
        VERIFY = 0x0c,
        /// Reservation Register.
        RESERVATION_REGISTER = 0x0d,
        /// Reservation Report.
        RESERVATION_REPORT = 0x0e,
        /// Reservation Acquire.
        RESERVATION_ACQUIRE = 0x11,
        /// Reservation Release.
        RESERVATION_RELEASE = 0x15,
        /// Copy.
        COPY = 0x19,
        /// Fabrics commands.
        FABRICS = 0x7f,
    }
}

open_enum! {
    /// Fabrics command types (FCTYPE).
    pub struct FabricsType: u8 {
        /// Property Set.
        PROPERTY_SET = 0x00,
        /// Connect.
        CONNECT = 0x01,
        /// Property Get.
        PROPERTY_GET = 0x04,
        /// Authentication Send.
        AUTHENTICATION_SEND = 0x05,
        /// Authentication Receive.
        AUTHENTICATION_RECEIVE = 0x06,
        /// Disconnect.
        DISCONNECT = 0x08,
    }
}
