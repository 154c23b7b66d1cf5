/*
 * The state of pbeamd: its local connections and, in a cluster, the cluster. The layers above attach their
 * own state to it, and are called through struct server_calls.
 */
#ifndef PBEAMD_TRANSPORT_SERVER_H
#define PBEAMD_TRANSPORT_SERVER_H

#include "base/err.h"
#include "namespace/names.h"
#include "proto/daemon.pb-c.h"
#include "proto/frame.h"
#include "proto/stream.h"
#include <event2/event.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct server_options {
	bool background;		       /* ends when idle */
	unsigned idle_s;		       /* the idle time after which it ends */
	int ready_fd;			       /* gets a byte when it serves; -1 none */
	const struct cluster_options *cluster; /* NULL: this host alone */
};

enum connection_phase {
	CONNECTION_NEW,	    /* only Hello is accepted */
	CONNECTION_GREETED, /* requests */
	CONNECTION_BUSY,    /* a request is being served: nothing is accepted */
	CONNECTION_PHASES,
};

struct cluster_calls;
struct forward;
struct pass;
struct cluster;
struct cluster_options;

struct connection {
	struct connection *next;
	struct server *server;
	struct stream stream;
	enum connection_phase phase;
	struct forward *forward; /* the request that a keeper carries out */
	bool closing;		 /* ends when all output is written */
	bool passed_on;		 /* forwarded by another host: not forwarded again */
	struct pass *pass;	 /* the request that another host carries out */
	bool expecting;		 /* receives channels with this cookie */
	uint8_t cookie[16];
};

/* Calls from a connection to the layers above. */
struct server_calls {
	/* A frame has arrived. False: it is not allowed now, and the connection ends. */
	bool (*request)(struct connection *connection, const struct frame *frame);
	/* The connection is about to be freed: its requests get no replies. */
	void (*closed)(struct connection *connection);
	/* In a child of the daemon: closes the cluster's descriptors. */
	void (*leave_child)(struct server *server);
	const struct cluster_calls *cluster;
};

struct server {
	const struct server_calls *calls;
	const struct server_options *options;
	struct event_base *base;
	struct names *names;
	int lock, listener;
	char path[PATH_MAX]; /* of the socket */
	ino_t inode;	     /* of the socket, to notice that another daemon has replaced it */
	struct listener *accepting;
	struct event *children, *idle, *stop[2];
	struct connection *connections;
	struct cluster *cluster; /* NULL: this host alone */
	struct worker *workers;
	uint64_t active_ns; /* time of the last activity */
};

#endif
