/* libefa.so.1 for programs that are linked to it: no device here is an EFA. */

#include <errno.h>
#include <stddef.h>

#define NOT_AN_EFA_POINTER(name)                                                                \
	void *name(void)                                                                        \
	{                                                                                       \
		errno = EOPNOTSUPP;                                                             \
		return NULL;                                                                    \
	}
#define NOT_AN_EFA_STATUS(name)                                                                 \
	int name(void)                                                                          \
	{                                                                                       \
		errno = EOPNOTSUPP;                                                             \
		return EOPNOTSUPP;                                                              \
	}

NOT_AN_EFA_POINTER(efadv_cq_from_ibv_cq_ex)
NOT_AN_EFA_POINTER(efadv_create_cq)
NOT_AN_EFA_POINTER(efadv_create_driver_qp)
NOT_AN_EFA_POINTER(efadv_create_qp_ex)
NOT_AN_EFA_STATUS(efadv_query_ah)
NOT_AN_EFA_STATUS(efadv_query_device)
