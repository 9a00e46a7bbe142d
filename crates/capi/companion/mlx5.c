/* libmlx5.so.1 for programs that are linked to it: no device here is a ConnectX. All names of
 * release 44, so that whatever is linked to that release loads. */

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define NO_OBJECT(name)                                                                         \
	void *name(void)                                                                        \
	{                                                                                       \
		errno = EOPNOTSUPP;                                                             \
		return NULL;                                                                    \
	}
#define NO_STATUS(name)                                                                         \
	int name(void)                                                                          \
	{                                                                                       \
		errno = EOPNOTSUPP;                                                             \
		return EOPNOTSUPP;                                                              \
	}
#define NOTHING(name)                                                                           \
	void name(void)                                                                         \
	{                                                                                       \
	}

bool mlx5dv_is_supported(void)
{
	return false;
}

ssize_t mlx5dv_devx_get_event(void)
{
	errno = EOPNOTSUPP;
	return -1;
}

/* One name under two nodes. */
NO_STATUS(mlx5dv_init_obj_1_0)
NO_STATUS(mlx5dv_init_obj_1_2)
__asm__(".symver mlx5dv_init_obj_1_0, mlx5dv_init_obj@MLX5_1.0");
__asm__(".symver mlx5dv_init_obj_1_2, mlx5dv_init_obj@@MLX5_1.2");

NO_STATUS(_mlx5dv_mkey_check)
NO_STATUS(_mlx5dv_query_port)
NO_STATUS(mlx5dv_crypto_login)
NO_STATUS(mlx5dv_crypto_login_destroy)
NO_STATUS(mlx5dv_crypto_login_query)
NO_STATUS(mlx5dv_crypto_login_query_state)
NO_STATUS(mlx5dv_crypto_logout)
NO_STATUS(mlx5dv_dci_stream_id_reset)
NO_STATUS(mlx5dv_dek_destroy)
NO_STATUS(mlx5dv_dek_query)
NO_STATUS(mlx5dv_destroy_flow_matcher)
NO_STATUS(mlx5dv_destroy_mkey)
NO_STATUS(mlx5dv_destroy_steering_anchor)
NO_STATUS(mlx5dv_devx_cq_modify)
NO_STATUS(mlx5dv_devx_cq_query)
NO_STATUS(mlx5dv_devx_destroy_eq)
NO_STATUS(mlx5dv_devx_free_msi_vector)
NO_STATUS(mlx5dv_devx_general_cmd)
NO_STATUS(mlx5dv_devx_get_async_cmd_comp)
NO_STATUS(mlx5dv_devx_ind_tbl_modify)
NO_STATUS(mlx5dv_devx_ind_tbl_query)
NO_STATUS(mlx5dv_devx_obj_destroy)
NO_STATUS(mlx5dv_devx_obj_modify)
NO_STATUS(mlx5dv_devx_obj_query)
NO_STATUS(mlx5dv_devx_obj_query_async)
NO_STATUS(mlx5dv_devx_qp_modify)
NO_STATUS(mlx5dv_devx_qp_query)
NO_STATUS(mlx5dv_devx_query_eqn)
NO_STATUS(mlx5dv_devx_srq_modify)
NO_STATUS(mlx5dv_devx_srq_query)
NO_STATUS(mlx5dv_devx_subscribe_devx_event)
NO_STATUS(mlx5dv_devx_subscribe_devx_event_fd)
NO_STATUS(mlx5dv_devx_umem_dereg)
NO_STATUS(mlx5dv_devx_wq_modify)
NO_STATUS(mlx5dv_devx_wq_query)
NO_STATUS(mlx5dv_dr_action_destroy)
NO_STATUS(mlx5dv_dr_action_modify_aso)
NO_STATUS(mlx5dv_dr_action_modify_flow_meter)
NO_STATUS(mlx5dv_dr_aso_other_domain_link)
NO_STATUS(mlx5dv_dr_aso_other_domain_unlink)
NO_STATUS(mlx5dv_dr_domain_destroy)
NO_STATUS(mlx5dv_dr_domain_sync)
NO_STATUS(mlx5dv_dr_matcher_destroy)
NO_STATUS(mlx5dv_dr_matcher_set_layout)
NO_STATUS(mlx5dv_dr_rule_destroy)
NO_STATUS(mlx5dv_dr_table_destroy)
NO_STATUS(mlx5dv_dump_dr_domain)
NO_STATUS(mlx5dv_dump_dr_matcher)
NO_STATUS(mlx5dv_dump_dr_rule)
NO_STATUS(mlx5dv_dump_dr_table)
NO_STATUS(mlx5dv_get_clock_info)
NO_STATUS(mlx5dv_map_ah_to_qp)
NO_STATUS(mlx5dv_modify_qp_lag_port)
NO_STATUS(mlx5dv_modify_qp_sched_elem)
NO_STATUS(mlx5dv_modify_qp_udp_sport)
NO_STATUS(mlx5dv_qp_cancel_posted_send_wrs)
NO_STATUS(mlx5dv_query_device)
NO_STATUS(mlx5dv_query_qp_lag_port)
NO_STATUS(mlx5dv_reserved_qpn_alloc)
NO_STATUS(mlx5dv_reserved_qpn_dealloc)
NO_STATUS(mlx5dv_sched_leaf_destroy)
NO_STATUS(mlx5dv_sched_leaf_modify)
NO_STATUS(mlx5dv_sched_node_destroy)
NO_STATUS(mlx5dv_sched_node_modify)
NO_STATUS(mlx5dv_set_context_attr)
NO_STATUS(mlx5dv_vfio_get_events_fd)
NO_STATUS(mlx5dv_vfio_process_events)

NO_OBJECT(mlx5dv_alloc_dm)
NO_OBJECT(mlx5dv_alloc_var)
NO_OBJECT(mlx5dv_create_cq)
NO_OBJECT(mlx5dv_create_flow)
NO_OBJECT(mlx5dv_create_flow_action_esp)
NO_OBJECT(mlx5dv_create_flow_action_modify_header)
NO_OBJECT(mlx5dv_create_flow_action_packet_reformat)
NO_OBJECT(mlx5dv_create_flow_matcher)
NO_OBJECT(mlx5dv_create_mkey)
NO_OBJECT(mlx5dv_create_qp)
NO_OBJECT(mlx5dv_create_steering_anchor)
NO_OBJECT(mlx5dv_create_wq)
NO_OBJECT(mlx5dv_crypto_login_create)
NO_OBJECT(mlx5dv_dek_create)
NO_OBJECT(mlx5dv_devx_alloc_msi_vector)
NO_OBJECT(mlx5dv_devx_alloc_uar)
NO_OBJECT(mlx5dv_devx_create_cmd_comp)
NO_OBJECT(mlx5dv_devx_create_eq)
NO_OBJECT(mlx5dv_devx_create_event_channel)
NO_OBJECT(mlx5dv_devx_obj_create)
NO_OBJECT(mlx5dv_devx_umem_reg)
NO_OBJECT(mlx5dv_devx_umem_reg_ex)
NO_OBJECT(mlx5dv_dm_map_op_addr)
NO_OBJECT(mlx5dv_dr_action_create_aso)
NO_OBJECT(mlx5dv_dr_action_create_default_miss)
NO_OBJECT(mlx5dv_dr_action_create_dest_array)
NO_OBJECT(mlx5dv_dr_action_create_dest_devx_tir)
NO_OBJECT(mlx5dv_dr_action_create_dest_ib_port)
NO_OBJECT(mlx5dv_dr_action_create_dest_ibv_qp)
NO_OBJECT(mlx5dv_dr_action_create_dest_root_table)
NO_OBJECT(mlx5dv_dr_action_create_dest_table)
NO_OBJECT(mlx5dv_dr_action_create_dest_vport)
NO_OBJECT(mlx5dv_dr_action_create_drop)
NO_OBJECT(mlx5dv_dr_action_create_flow_counter)
NO_OBJECT(mlx5dv_dr_action_create_flow_meter)
NO_OBJECT(mlx5dv_dr_action_create_flow_sampler)
NO_OBJECT(mlx5dv_dr_action_create_modify_header)
NO_OBJECT(mlx5dv_dr_action_create_packet_reformat)
NO_OBJECT(mlx5dv_dr_action_create_pop_vlan)
NO_OBJECT(mlx5dv_dr_action_create_push_vlan)
NO_OBJECT(mlx5dv_dr_action_create_tag)
NO_OBJECT(mlx5dv_dr_domain_create)
NO_OBJECT(mlx5dv_dr_matcher_create)
NO_OBJECT(mlx5dv_dr_rule_create)
NO_OBJECT(mlx5dv_dr_table_create)
NO_OBJECT(mlx5dv_get_vfio_device_list)
NO_OBJECT(mlx5dv_open_device)
NO_OBJECT(mlx5dv_pp_alloc)
NO_OBJECT(mlx5dv_qp_ex_from_ibv_qp_ex)
NO_OBJECT(mlx5dv_sched_leaf_create)
NO_OBJECT(mlx5dv_sched_node_create)

NOTHING(mlx5dv_devx_destroy_cmd_comp)
NOTHING(mlx5dv_devx_destroy_event_channel)
NOTHING(mlx5dv_devx_free_uar)
NOTHING(mlx5dv_dr_domain_allow_duplicate_rules)
NOTHING(mlx5dv_dr_domain_set_reclaim_device_memory)
NOTHING(mlx5dv_free_var)
NOTHING(mlx5dv_pp_free)
