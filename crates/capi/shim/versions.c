/* Symbols that a Rust library cannot give their versions.
 *
 * ibv_query_gid_type lives in the private node of each release. A name can be in several nodes only
 * as several symbols, so each node gets a function of its own. */

#include <stdbool.h>
#include <stdint.h>

struct ibv_context;

/* In src/verbs/gid.rs. */
int softrdma_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index,
			    unsigned int *type);

#define QUERY_GID_TYPE(release, at)                                                             \
	int query_gid_type_##release(struct ibv_context *context, uint8_t port_num,             \
				     unsigned int index, unsigned int *type);                   \
	__asm__(".symver query_gid_type_" #release ", ibv_query_gid_type" at                    \
		"IBVERBS_PRIVATE_" #release);                                                   \
	int query_gid_type_##release(struct ibv_context *context, uint8_t port_num,             \
				     unsigned int index, unsigned int *type)                    \
	{                                                                                       \
		return softrdma_query_gid_type(context, port_num, index, type);                 \
	}

QUERY_GID_TYPE(25, "@")
QUERY_GID_TYPE(33, "@")
QUERY_GID_TYPE(34, "@@")
QUERY_GID_TYPE(57, "@")
QUERY_GID_TYPE(59, "@")
QUERY_GID_TYPE(64, "@")
QUERY_GID_TYPE(65, "@")

/* The one data symbol: vendor libraries set it, nothing here reads it. */
bool verbs_allow_disassociate_destroy;
