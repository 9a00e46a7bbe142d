use super::*;
use crate::abi::constants::*;

fn empty_wr() -> ibv_send_wr {
    // SAFETY: NULL pointers and zero numbers.
    unsafe { zeroed() }
}

fn empty_attr() -> ibv_qp_attr {
    // SAFETY: zero numbers.
    unsafe { zeroed() }
}

#[test]
fn a_received_immediate_keeps_its_byte_order() {
    let mut from = WorkCompletion::success(7, CompletionOpcode::Receive, 64, Qpn::truncated(0x11));
    from.immediate = Some([1, 2, 3, 4]);
    let to = completion(&from);
    assert_eq!(to.imm_data.to_ne_bytes(), [1, 2, 3, 4]);
    assert_eq!(to.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
    assert_eq!(
        (to.wr_id, to.status, to.opcode, to.byte_len),
        (7, 0, IBV_WC_RECV, 64)
    );
    assert_eq!(to.qp_num, 0x11);
}

#[test]
fn an_invalidated_key_is_in_host_order() {
    let mut from = WorkCompletion::success(0, CompletionOpcode::Receive, 0, Qpn::truncated(1));
    from.invalidated = Some(MemoryKey(0x1122_3344));
    let to = completion(&from);
    assert_eq!(
        (to.imm_data, to.wc_flags),
        (0x1122_3344, IBV_WC_GRH | IBV_WC_WITH_INV)
    );
}

#[test]
fn a_failed_receive_has_no_flags_and_no_length() {
    let mut from = WorkCompletion::error(
        9,
        CompletionOpcode::Receive,
        Status::Flushed,
        Qpn::truncated(2),
    );
    from.length = 12;
    let to = completion(&from);
    assert_eq!(
        (to.status, to.wc_flags, to.byte_len),
        (IBV_WC_WR_FLUSH_ERR, 0, 0)
    );
    assert_eq!((to.wr_id, to.qp_num), (9, 2));
}

#[test]
fn every_opcode_reads_its_own_member() {
    let mut wr = empty_wr();
    wr.imm_data = 0x0403_0201;
    wr.wr.atomic = crate::abi::verbs::send_wr_atomic {
        remote_addr: 0x1000,
        compare_add: 5,
        swap: 6,
        rkey: 0x77,
    };
    let target = RemoteMemory {
        address: 0x1000,
        key: MemoryKey(0x77),
    };
    let of = |opcode| {
        let mut wr = wr;
        wr.opcode = opcode;
        operation(&wr)
    };
    assert_eq!(
        of(IBV_WR_ATOMIC_CMP_AND_SWP),
        Ok(Operation::CompareSwap {
            remote: target,
            compare: 5,
            swap: 6
        })
    );
    assert_eq!(
        of(IBV_WR_ATOMIC_FETCH_AND_ADD),
        Ok(Operation::FetchAdd {
            remote: target,
            add: 5
        })
    );

    wr.wr.rdma = crate::abi::verbs::send_wr_rdma {
        remote_addr: 0x2000,
        rkey: 0x88,
    };
    let of = |opcode| {
        let mut wr = wr;
        wr.opcode = opcode;
        operation(&wr)
    };
    let target = RemoteMemory {
        address: 0x2000,
        key: MemoryKey(0x88),
    };
    let bytes = 0x0403_0201_u32.to_ne_bytes();
    assert_eq!(of(IBV_WR_RDMA_WRITE), Ok(Operation::Write(target)));
    assert_eq!(of(IBV_WR_RDMA_READ), Ok(Operation::Read(target)));
    assert_eq!(
        of(IBV_WR_RDMA_WRITE_WITH_IMM),
        Ok(Operation::WriteImmediate(target, bytes))
    );
    assert_eq!(
        of(IBV_WR_SEND_WITH_IMM),
        Ok(Operation::SendImmediate(bytes))
    );
    let key = MemoryKey(0x0403_0201);
    assert_eq!(of(IBV_WR_SEND_WITH_INV), Ok(Operation::SendInvalidate(key)));
    assert_eq!(of(IBV_WR_LOCAL_INV), Ok(Operation::LocalInvalidate(key)));
    for unknown in [IBV_WR_BIND_MW, IBV_WR_TSO, 13, 99] {
        assert_eq!(of(unknown), Err(Errno::INVALID), "opcode {unknown}");
    }
}

#[test]
fn only_what_the_mask_names_is_looked_at() {
    let mut attr = empty_attr();
    attr.qp_state = 99;
    attr.path_mtu = 77;
    attr.dest_qp_num = u32::MAX;
    attr.timeout = 14;
    let (to, _, mask) =
        attributes(&attr, IBV_QP_TIMEOUT, LinkKind::Rxe).expect("nothing else is read");
    assert_eq!((to.timeout, mask), (14, AttributeMask::TIMEOUT));
    for wrong in [
        IBV_QP_STATE,
        IBV_QP_PATH_MTU,
        IBV_QP_DEST_QPN,
        IBV_QP_AV,
        1 << 24,
        1 << 30,
    ] {
        assert_eq!(
            attributes(&attr, wrong, LinkKind::Rxe),
            Err(Errno::INVALID),
            "mask {wrong:#x}"
        );
    }
}

#[test]
fn a_stream_needs_no_address_vector_of_the_program() {
    let attr = empty_attr();
    let all = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN;
    let (_, _, mask) = attributes(&attr, all, LinkKind::Siw).expect("no value is wrong");
    assert_eq!(mask, AttributeMask::STATE);
    assert_eq!(
        attributes(&attr, 1 << 30, LinkKind::Siw),
        Err(Errno::INVALID)
    );
}

#[test]
fn an_address_vector_survives_modify_and_query() {
    let mut attr = empty_attr();
    attr.ah_attr.is_global = 1;
    attr.ah_attr.sl = 3;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh = ibv_global_route {
        dgid: ibv_gid {
            raw: core::array::from_fn(|byte| byte as u8),
        },
        flow_label: 0x12345,
        sgid_index: 2,
        hop_limit: 9,
        traffic_class: 0x20,
    };
    let (_, address, _) = attributes(&attr, IBV_QP_AV, LinkKind::Rxe).expect("a valid address");
    let back = ah_attr(&address);
    // SAFETY: both are GIDs.
    assert_eq!(unsafe { back.grh.dgid.raw }, unsafe {
        attr.ah_attr.grh.dgid.raw
    });
    let route = |from: &ibv_ah_attr| {
        let grh = &from.grh;
        (
            grh.flow_label,
            grh.sgid_index,
            grh.hop_limit,
            grh.traffic_class,
            from.sl,
            from.port_num,
        )
    };
    assert_eq!(route(&back), route(&attr.ah_attr));
    assert_eq!(back.is_global, 1);
}

#[test]
fn lists_of_elements_have_bounds() {
    let list = [ibv_sge {
        addr: 1,
        length: 2,
        lkey: 3,
    }; 33];
    let mut into = Sges::new();
    // SAFETY: the list is as long as the longest count.
    unsafe {
        assert_eq!(sges(list.as_ptr(), 32, &mut into), Ok(()));
        assert_eq!(into.len(), 32);
        assert_eq!(sges(list.as_ptr(), 33, &mut into), Err(Errno::INVALID));
        assert_eq!(sges(list.as_ptr(), -1, &mut into), Err(Errno::INVALID));
        assert_eq!(sges(core::ptr::null(), 1, &mut into), Err(Errno::INVALID));
        assert_eq!(sges(core::ptr::null(), 0, &mut into), Ok(()));
    }
    assert!(into.is_empty());
}
