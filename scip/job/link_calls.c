/* Distributes what a connection to another host reports among the links and the console. */
#include "scip/job/link_process.h"

static void on_connected(struct link_process *process, struct link_peer *peer)
{
	link_guest_connected(process, peer);
	console_guest_connected(process, peer);
}

static void on_unconnected(struct link_process *process, const struct link_peer *peer, int r)
{
	link_guest_unconnected(process, peer, r);
	console_guest_unconnected(process, peer);
}

const struct link_peer_calls link_process_calls = {
	.connected = on_connected,
	.unconnected = on_unconnected,
	.link_frame = link_guest_frame,
	.console_frame = console_guest_frame,
};
