/* What happens to an ID while another thread connects it by TCP, which takes its time where nobody
 * listens: the thread is cancelled, or queue pair and ID are destroyed. Needs a link of iWARP on lo;
 * `cargo xtask programs --filter hasty` runs it. */

#include <pthread.h>
#include <unistd.h>

#include "both_ends.h"

/* Most likely the call is under way after so long; if not, the results are the same. */
#define UNDER_WAY_US 30000

#define ROUNDS 3

/* Has a port and does not listen there. */
static struct rdma_cm_id *deaf;

static void *connects(void *id)
{
	struct rdma_conn_param param = { .retry_count = 7 };

	return rdma_connect(id, &param) ? NULL : id;
}

static pthread_t connecting(struct rdma_cm_id *id)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, connects, id))
		die("pthread_create");
	usleep(UNDER_WAY_US);
	return thread;
}

static void cancelled(void)
{
	struct rdma_cm_id *id = on_its_way(deaf);
	pthread_t thread;
	void *result;

	queue_pair(id);
	thread = connecting(id);
	if (pthread_cancel(thread) || pthread_join(thread, &result))
		die("pthread_cancel");
	must("a thread is cancelled after rdma_connect", result != id);
	rdma_destroy_qp(id);
	row("rdma_destroy_id", "then", 0, of_number(rdma_destroy_id(id)));
}

static void destroyed(void)
{
	struct rdma_cm_id *id = on_its_way(deaf);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr request = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	pthread_t thread;
	void *result;

	if (!cq || rdma_create_qp(id, NULL, &request))
		die("rdma_create_qp");
	thread = connecting(id);
	rdma_destroy_qp(id);
	row("ibv_destroy_cq", "of a queue pair that was being connected", 0, ibv_destroy_cq(cq));
	row("rdma_destroy_id", "that is being connected", 0, of_number(rdma_destroy_id(id)));
	if (pthread_join(thread, &result))
		die("pthread_join");
	must("rdma_connect fails", result == NULL);
}

int main(void)
{
	struct sockaddr_in here = loopback(0);

	channel = rdma_create_event_channel();
	if (!channel)
		die("rdma_create_event_channel");
	deaf = id_on(channel, RDMA_PS_TCP);
	if (rdma_bind_addr(deaf, (struct sockaddr *)&here))
		die("rdma_bind_addr");
	for (int round = 0; round < ROUNDS; round++) {
		cancelled();
		destroyed();
	}
	must("nothing is left in the channel", is_quiet(channel));
	rdma_destroy_id(deaf);
	rdma_destroy_event_channel(channel);
	printf("%d wrong\n", failures);
	return failures != 0;
}
