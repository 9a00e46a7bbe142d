/* libibumad.so.3 for programs that are linked to it. There is no subnet manager and no management
 * datagram on Ethernet, so this library truthfully finds no device that carries them. What only
 * works on the caller's own buffer works. */

#include <arpa/inet.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct address {
	uint32_t qpn;
	uint32_t qkey;
	uint16_t lid;
	uint8_t sl;
	uint8_t path_bits;
	uint8_t grh_present;
	uint8_t gid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
	uint8_t gid[16];
	uint32_t flow_label;
	uint16_t pkey_index;
	uint8_t reserved[6];
};

/* The buffer of a datagram: this header, then the datagram. */
struct buffer {
	uint32_t agent_id;
	uint32_t status;
	uint32_t timeout_ms;
	uint32_t retries;
	uint32_t length;
	struct address address;
};

_Static_assert(sizeof(struct buffer) == 64, "the header that programs allocate for");

/* The caller's own buffer */

size_t umad_size(void)
{
	return sizeof(struct buffer);
}

void *umad_get_mad(void *umad)
{
	return (char *)umad + sizeof(struct buffer);
}

int umad_status(void *umad)
{
	return (int)((struct buffer *)umad)->status;
}

struct address *umad_get_mad_addr(void *umad)
{
	return &((struct buffer *)umad)->address;
}

int umad_set_addr_net(void *umad, uint16_t dlid, uint32_t dqp, int sl, uint32_t qkey)
{
	struct address *to = umad_get_mad_addr(umad);

	to->qpn = dqp;
	to->lid = dlid;
	to->qkey = qkey;
	to->sl = (uint8_t)sl;
	return 0;
}

int umad_set_addr(void *umad, int dlid, int dqp, int sl, int qkey)
{
	return umad_set_addr_net(umad, htons((uint16_t)dlid), htonl((uint32_t)dqp), sl,
				 htonl((uint32_t)qkey));
}

/* `from` is the address of another datagram, its flow label in host order; NULL: no GRH. */
int umad_set_grh(void *umad, void *from)
{
	struct address *to = umad_get_mad_addr(umad);
	const struct address *route = from;

	to->grh_present = route != NULL;
	if (route) {
		memcpy(to->gid, route->gid, sizeof(to->gid));
		to->flow_label = htonl(route->flow_label);
		to->hop_limit = route->hop_limit;
		to->traffic_class = route->traffic_class;
	}
	return 0;
}

int umad_set_pkey(void *umad, int pkey_index)
{
	umad_get_mad_addr(umad)->pkey_index = (uint16_t)pkey_index;
	return 0;
}

int umad_get_pkey(void *umad)
{
	return umad_get_mad_addr(umad)->pkey_index;
}

/* Devices: none */

#define SUCCEEDS(name)                                                                          \
	int name(void)                                                                          \
	{                                                                                       \
		return 0;                                                                       \
	}
#define NO_DEVICE(name)                                                                         \
	int name(void)                                                                          \
	{                                                                                       \
		errno = ENODEV;                                                                 \
		return -ENODEV;                                                                 \
	}
#define NOTHING(name)                                                                           \
	void name(void)                                                                         \
	{                                                                                       \
	}

SUCCEEDS(umad_init)
SUCCEEDS(umad_done)
SUCCEEDS(umad_get_cas_names)
SUCCEEDS(umad_release_ca)
SUCCEEDS(umad_release_port)
SUCCEEDS(umad_sort_ca_device_list)

NO_DEVICE(umad_close_port)
NO_DEVICE(umad_get_ca)
NO_DEVICE(umad_get_ca_portguids)
NO_DEVICE(umad_get_fd)
NO_DEVICE(umad_get_issm_path)
NO_DEVICE(umad_get_port)
NO_DEVICE(umad_open_port)
NO_DEVICE(umad_poll)
NO_DEVICE(umad_recv)
NO_DEVICE(umad_register)
NO_DEVICE(umad_register2)
NO_DEVICE(umad_register_oui)
NO_DEVICE(umad_send)
NO_DEVICE(umad_unregister)

NOTHING(umad_addr_dump)
NOTHING(umad_dump)
NOTHING(umad_free_ca_device_list)

/* An empty list is NULL; errno tells it from a failure. */
void *umad_get_ca_device_list(void)
{
	errno = 0;
	return NULL;
}

int umad_debug(int level)
{
	static int current;
	int previous = current;

	current = level;
	return previous;
}

/* Names of datagrams that nobody here can receive. */

#define UNKNOWN(name)                                                                           \
	const char *name(void)                                                                  \
	{                                                                                       \
		return "<unknown>";                                                             \
	}

UNKNOWN(umad_attribute_str)
UNKNOWN(umad_class_str)
UNKNOWN(umad_common_mad_status_str)
UNKNOWN(umad_method_str)
UNKNOWN(umad_sa_mad_status_str)
