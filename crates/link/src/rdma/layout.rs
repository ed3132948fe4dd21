//! Compares our structures and constants with the installed verbs header, if there is one: a C
//! program prints its sizes, offsets and values, and this test compares them with ours.
//!
//! Debian, Ubuntu: `apt install gcc libibverbs-dev`. macOS: the SDK has the header.

use std::mem::{offset_of, size_of};
use std::process::Command;

use super::{ffi, verbs};

/// A C expression and its expected value.
type Check = (String, u64);

/// Offsets of fields that have the same names in C.
macro_rules! offsets {
    ($checks:ident, $ours:ty, $theirs:literal, $($field:ident),*) => {
        $($checks.push((
            format!("offsetof({}, {})", $theirs, stringify!($field)),
            offset_of!($ours, $field) as u64,
        ));)*
    };
}

/// A completely declared structure: also compares its size.
macro_rules! whole {
    ($checks:ident, $ours:ty, $theirs:literal, $($field:ident),*) => {
        $checks.push((format!("sizeof({})", $theirs), size_of::<$ours>() as u64));
        offsets!($checks, $ours, $theirs, $($field),*);
    };
}

fn structures() -> Vec<Check> {
    let mut checks = Vec::new();
    offsets!(checks, ffi::Device, "struct ibv_device", node_type, transport_type);
    offsets!(checks, ffi::Context, "struct ibv_context", device, ops);
    whole!(
        checks,
        ffi::ContextOps,
        "struct ibv_context_ops",
        poll_cq,
        req_notify_cq,
        post_send,
        post_recv
    );
    whole!(checks, ffi::Mr, "struct ibv_mr", context, pd, addr, length, handle, lkey, rkey);
    whole!(checks, ffi::CompChannel, "struct ibv_comp_channel", context, fd, refcnt);
    offsets!(checks, ffi::Cq, "struct ibv_cq", context);
    offsets!(
        checks,
        ffi::Qp,
        "struct ibv_qp",
        context,
        qp_context,
        pd,
        send_cq,
        recv_cq,
        srq,
        handle,
        qp_num,
        state,
        qp_type
    );
    // Its size grows with versions; ours has room to spare.
    offsets!(
        checks,
        ffi::PortAttr,
        "struct ibv_port_attr",
        state,
        max_mtu,
        active_mtu,
        gid_tbl_len,
        port_cap_flags,
        max_msg_sz,
        pkey_tbl_len,
        lid,
        sm_lid,
        lmc,
        phys_state,
        link_layer,
        flags
    );
    whole!(checks, ffi::Sge, "struct ibv_sge", addr, length, lkey);
    whole!(
        checks,
        ffi::SendWr,
        "struct ibv_send_wr",
        wr_id,
        next,
        sg_list,
        num_sge,
        opcode,
        send_flags,
        imm_data
    );
    whole!(checks, ffi::RecvWr, "struct ibv_recv_wr", wr_id, next, sg_list, num_sge);
    whole!(
        checks,
        ffi::Wc,
        "struct ibv_wc",
        wr_id,
        status,
        opcode,
        vendor_err,
        byte_len,
        qp_num,
        src_qp,
        wc_flags,
        pkey_index,
        slid,
        sl,
        dlid_path_bits
    );
    connection_structures(&mut checks);
    checks
}

fn connection_structures(checks: &mut Vec<Check>) {
    whole!(
        checks,
        ffi::QpCap,
        "struct ibv_qp_cap",
        max_send_wr,
        max_recv_wr,
        max_send_sge,
        max_recv_sge,
        max_inline_data
    );
    whole!(
        checks,
        ffi::QpInitAttr,
        "struct ibv_qp_init_attr",
        qp_context,
        send_cq,
        recv_cq,
        srq,
        cap,
        qp_type,
        sq_sig_all
    );
    whole!(checks, ffi::Gid, "union ibv_gid",);
    whole!(
        checks,
        ffi::GlobalRoute,
        "struct ibv_global_route",
        dgid,
        flow_label,
        sgid_index,
        hop_limit,
        traffic_class
    );
    whole!(
        checks,
        ffi::AhAttr,
        "struct ibv_ah_attr",
        grh,
        dlid,
        sl,
        src_path_bits,
        static_rate,
        is_global,
        port_num
    );
    whole!(
        checks,
        ffi::QpAttr,
        "struct ibv_qp_attr",
        qp_state,
        cur_qp_state,
        path_mtu,
        path_mig_state,
        qkey,
        rq_psn,
        sq_psn,
        dest_qp_num,
        qp_access_flags,
        cap,
        ah_attr,
        alt_ah_attr,
        pkey_index,
        max_rd_atomic,
        max_dest_rd_atomic,
        min_rnr_timer,
        port_num,
        timeout,
        retry_cnt,
        rnr_retry,
        rate_limit
    );
}

fn constants() -> Vec<Check> {
    let constants: [(&str, i64); 30] = [
        ("IBV_TRANSPORT_IB", ffi::TRANSPORT_IB.into()),
        ("IBV_PORT_ACTIVE", ffi::PORT_ACTIVE.into()),
        ("IBV_QPT_RC", ffi::QPT_RC.into()),
        ("IBV_QPT_UC", ffi::QPT_UC.into()),
        ("IBV_QPS_INIT", ffi::QPS_INIT.into()),
        ("IBV_QPS_RTR", ffi::QPS_RTR.into()),
        ("IBV_QPS_RTS", ffi::QPS_RTS.into()),
        ("IBV_SEND_SIGNALED", ffi::SEND_SIGNALED.into()),
        ("IBV_WR_SEND", verbs::OP_SEND.into()),
        ("IBV_WC_SUCCESS", 0),
        ("IBV_MTU_256", 1),
        ("IBV_MTU_4096", 5),
        ("IBV_ACCESS_LOCAL_WRITE", ffi::ACCESS_LOCAL_WRITE.into()),
        ("IBV_ACCESS_REMOTE_WRITE", ffi::ACCESS_REMOTE_WRITE.into()),
        ("IBV_ACCESS_REMOTE_READ", ffi::ACCESS_REMOTE_READ.into()),
        ("IBV_QP_STATE", ffi::QP_STATE.into()),
        ("IBV_QP_ACCESS_FLAGS", ffi::QP_ACCESS_FLAGS.into()),
        ("IBV_QP_PKEY_INDEX", ffi::QP_PKEY_INDEX.into()),
        ("IBV_QP_PORT", ffi::QP_PORT.into()),
        ("IBV_QP_AV", ffi::QP_AV.into()),
        ("IBV_QP_PATH_MTU", ffi::QP_PATH_MTU.into()),
        ("IBV_QP_TIMEOUT", ffi::QP_TIMEOUT.into()),
        ("IBV_QP_RETRY_CNT", ffi::QP_RETRY_CNT.into()),
        ("IBV_QP_RNR_RETRY", ffi::QP_RNR_RETRY.into()),
        ("IBV_QP_RQ_PSN", ffi::QP_RQ_PSN.into()),
        ("IBV_QP_MAX_QP_RD_ATOMIC", ffi::QP_MAX_QP_RD_ATOMIC.into()),
        ("IBV_QP_MIN_RNR_TIMER", ffi::QP_MIN_RNR_TIMER.into()),
        ("IBV_QP_SQ_PSN", ffi::QP_SQ_PSN.into()),
        ("IBV_QP_MAX_DEST_RD_ATOMIC", ffi::QP_MAX_DEST_RD_ATOMIC.into()),
        ("IBV_QP_DEST_QPN", ffi::QP_DEST_QPN.into()),
    ];
    constants.map(|(name, ours)| (name.to_string(), ours as u64)).to_vec()
}

/// Evaluates each expression with the installed header; `Err` is why that is impossible.
fn ask_header(expressions: &[&str]) -> Result<Vec<u64>, String> {
    let directory = std::env::temp_dir().join(format!("sinew-verbs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (source, program) = (directory.join("layout.c"), directory.join("layout"));
    let lines = expressions
        .iter()
        .map(|expression| format!("  printf(\"%llu\\n\", (unsigned long long)({expression}));\n"));
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\
         int main(void) {{\n{}  return 0;\n}}\n",
        lines.collect::<String>()
    );
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&program).output();
    let answer = match compiled {
        Err(error) => Err(format!("no C compiler: {error}")),
        Ok(output) if !output.status.success() => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            // Any other failure is a bug of this test.
            assert!(text.contains("infiniband/verbs.h"), "{text}");
            Err("infiniband/verbs.h is not installed".to_string())
        }
        Ok(_) => Ok(Command::new(&program).output().unwrap().stdout),
    };
    std::fs::remove_dir_all(&directory).unwrap();
    let numbers = String::from_utf8(answer?).unwrap();
    Ok(numbers.lines().map(|line| line.parse().unwrap()).collect())
}

#[test]
fn our_structures_and_constants_are_those_of_the_installed_header() {
    let checks = [structures(), constants()].concat();
    let expressions: Vec<&str> = checks.iter().map(|(expression, _)| expression.as_str()).collect();
    let theirs = match ask_header(&expressions) {
        Ok(theirs) => theirs,
        Err(reason) => return println!("not compared: {reason}"),
    };
    assert_eq!(theirs.len(), checks.len());
    let wrong: Vec<String> = checks
        .iter()
        .zip(theirs)
        .filter(|((_, ours), theirs)| ours != theirs)
        .map(|((expression, ours), theirs)| format!("{expression}: {theirs}, ours {ours}"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    println!("{} sizes, offsets and constants compared", checks.len());
}
