/*
 * The cluster half of pbeamd: who the other hosts are, the channels to their daemons, the channels that come
 * and go for local programs. docs/CLUSTER.md tells the story; with no cluster configured none of this runs.
 *
 * Every daemon has a channel of kind PEER with every other that it can reach. On each it says every second
 * how it is (HostInfo); one that has said nothing for some seconds is lost and dialled again for ever. The
 * central daemon passes on what it knows of all hosts.
 */
#ifndef PBEAMD_CLUSTER_H
#define PBEAMD_CLUSTER_H

#include "channel/channel.h"
#include "namespace/registry.h"
#include "pbeamd/server.h"

enum {
	CLUSTER_ADDRESS_MAX = 300, /* "ADDRESS:PORT" */
	CLUSTER_MAPS_MAX = 32,
	CLUSTER_INSTANCE_SIZE = 16,
};

/* What the command line and the configuration file say. */
struct cluster_options {
	char listen[CLUSTER_ADDRESS_MAX], join[CLUSTER_ADDRESS_MAX]; /* "" none */
	char key[PATH_MAX];
	char name[CHANNEL_HOST_MAX];
	char *maps[CLUSTER_MAPS_MAX]; /* "FROM=TO" */
	int nmaps;
};

/* ---- config.c ---- */
/* Sets one option by its name on the command line. -EINVAL with the sentence. */
must_check int config_set(struct cluster_options *options, const char *name, const char *value,
			  struct err *err);
/* Reads a file of `name = value` lines; what is set already stays. */
must_check int config_read(struct cluster_options *options, const char *path, struct err *err);
/* True if this is to be a host of a cluster; then it is checked and made complete. */
must_check int config_check(struct cluster_options *options, bool *cluster, struct err *err);
/* A daemon that is started on demand goes on with the configuration of the one that ended last; one that was
 * started without a cluster forgets it. */
must_check int config_remember(const struct cluster_options *options, struct err *err);
void config_forget(void);
must_check int config_recall(struct cluster_options *options, struct err *err);

struct peer;

/* What is known of the central host. */
struct registry_state {
	uint64_t term; /* how many hosts have taken over so far; the later one counts */
	uint64_t revision;
	bool central;				/* it is this one */
	uint8_t cluster[CLUSTER_INSTANCE_SIZE]; /* which of all clusters: a number made once */
	char host[CHANNEL_HOST_MAX];		/* "" not known yet */
	char address[CLUSTER_ADDRESS_MAX];	/* where it listens */
	char told[CLUSTER_ADDRESS_MAX];		/* --join as it was given to this host by then */
};

/* When something is to be tried again. */
struct dialler {
	bool busy;
	unsigned wait_ms;
	uint64_t at_ns;
};

/* Another host. */
struct host {
	struct host *next;
	char name[CHANNEL_HOST_MAX];
	Pbeam__HostInfo *info; /* its last word, NULL while there was none */
	struct peer *peer;     /* NULL: no channel */
	uint64_t heard_ns;     /* CLOCK_MONOTONIC, directly or through the central daemon; 0 never */
	uint64_t quiet_ns;     /* since when there is no channel, as far as this daemon knows */
	struct dialler dialler;
	bool said_lost;
};

struct incoming; /* a connection that has not said yet what it is */

struct cluster {
	struct server *server;
	const struct cluster_options *options;
	struct channel_key key;
	uint8_t instance[CLUSTER_INSTANCE_SIZE]; /* tells this host from another of the same name */
	bool central;
	bool deposed; /* it was, until another host took over */
	struct registry_state state;
	struct take_over *take_over; /* this host is about to become central */
	int listener;		     /* -1: it does not listen */
	struct event *accepting, *tick;
	uint64_t ticked_ns;
	Pbeam__HostInfo *self;
	struct host *hosts;
	struct peer *peers;
	struct incoming *incoming;
	struct dialler join;
	struct registry registry; /* one of these two: */
	struct registry store, remote;
	bool kept; /* the store has all that the copy has */
	struct registry_copy *copy;
	struct registry_wait *waits; /* local programs that have asked the registry */
	struct heard_wait *unheard;  /* answers that wait until all hosts have heard */
	struct numbers *numbers;
	struct addresses *addresses;
	uint64_t settled_ns, settled_version; /* when settled_tick() looked, and the newest record by then */
	struct superseded *superseded;	      /* processes that may have been replaced by others elsewhere, */
	uint64_t superseded_ns;		      /* to be looked at again then, */
	uint64_t away_ns;	   /* CLOCK_REALTIME: if they are older than the loss of the central host */
	struct remote_call *calls; /* asked of other hosts */
	struct guest *guests;	   /* asked by other hosts */
	int64_t next_call;
};

/* ---- cluster.c ---- */
must_check int cluster_open(struct server *server, struct err *err);
void cluster_close(struct cluster *cluster);
/* In a child of the daemon: closes what is the cluster's. */
void cluster_leave_child(struct cluster *cluster);
/* A refusal unless there is a cluster. */
must_check int cluster_need(const struct server *server, struct err *err);

/* ---- bridges.c ---- */
/* Fills info->depends: programs on other hosts whose connections go through bridges on this one. */
void bridges_describe(Pbeam__HostInfo *info);

/* ---- central.c ---- */
/* Opens the store: who is central, as this host's last daemon knew it and the command line wants it. */
must_check int central_open(struct cluster *cluster, struct err *err);
bool central_is(const struct cluster *cluster, const char *host);
/* Where it is to be dialled; "" if it is this host, or nobody knows. */
const char *central_address(const struct cluster *cluster);
/* Says so to the others. */
must_check int central_describe(const struct cluster *cluster, Pbeam__HostInfo *self);
/* -EINVAL if a host that says this is of another cluster. */
must_check int central_check(const struct peer *peer, const Pbeam__HostInfo *info, struct err *err);
/* What another host knows of it, which may be newer: then this one follows. */
void central_heard(struct peer *peer, const Pbeam__HostInfo *info);
/* This host is it from now on, by `state`, which is in the store. */
void central_become(struct cluster *cluster, const struct registry_state *state);

/* ---- take_over.c ---- */
must_check int take_over_begin(struct connection *connection, struct err *err);
int handle_copy(struct connection *connection, const ProtobufCMessage *message, struct err *err);
/* The connection is gone: nobody waits for its answer. */
void take_over_forget_connection(struct connection *connection);
void take_over_close(struct cluster *cluster);

/* ---- host_info.c ---- */
/* How this host is; the caller frees it with message_free(). NULL without memory. */
Pbeam__HostInfo *host_info_new(const struct cluster *cluster);
/* The part that changes. */
void host_info_refresh(const struct cluster *cluster, Pbeam__HostInfo *info);

/* ---- hosts.c ---- */
struct host *host_find(struct cluster *cluster, const char *name);
/* The same, made if it is not known. NULL without memory. */
struct host *host_get(struct cluster *cluster, const char *name);
void host_forget(struct cluster *cluster, struct host *host);
/* Takes the info. */
void host_heard(struct host *host, Pbeam__HostInfo *info);
bool host_is_up(const struct host *host);
/* "ADDRESS:PORT" of one that says where it listens; false: it does not. */
bool host_listens(const Pbeam__HostInfo *info, char address[CLUSTER_ADDRESS_MAX]);
/* Where it listens, or -EHOSTUNREACH with a sentence. */
must_check int host_address(const struct cluster *cluster, const struct host *host,
			    char address[CLUSTER_ADDRESS_MAX], struct err *err);
int handle_hosts(struct connection *connection, const ProtobufCMessage *message, struct err *err);

/* ---- hosts_remove.c ---- */
must_check int hosts_remove(struct connection *connection, const char *name, struct err *err);

/* ---- peer.c ---- */
struct peer {
	struct peer *next;
	struct cluster *cluster;
	struct stream stream;
	struct host *host; /* NULL until it has said who it is */
	char name[CHANNEL_HOST_MAX], address[CLUSTER_ADDRESS_MAX];
	uint64_t heard_ns;
	uint64_t heard_revision; /* on the central daemon: it knows of all changes up to there */
};
/* A channel of kind PEER, taken. `address`: where from or to. */
void peer_open(struct cluster *cluster, int fd, const char *name, const char *address);
void peer_close(struct peer *peer);
/* Says to all how we are, now. */
void peers_say(struct cluster *cluster);
/* Every second or so: says how we are, gives up who is silent. */
void peers_tick(struct cluster *cluster, uint64_t now_ns);
/* -EHOSTUNREACH when there is no channel. */
must_check int peer_send(struct host *host, uint32_t type, const ProtobufCMessage *message);

/* ---- numbers.c ---- */
/* Leases blocks of process numbers ahead of need; keeps the places of this host's processes true. */
must_check int numbers_open(struct cluster *cluster, struct err *err);
void numbers_close(struct cluster *cluster);
void numbers_tick(struct cluster *cluster, uint64_t now_ns);

/* ---- addresses.c ---- */
/* Removes the entries of addresses of this host that nobody is bound to any more. */
must_check int addresses_open(struct cluster *cluster, struct err *err);
void addresses_close(struct cluster *cluster);
void addresses_tick(struct cluster *cluster, uint64_t now_ns);

/* ---- dial.c ---- */
/* Connects to who is due; never blocks. */
void dial_tick(struct cluster *cluster, uint64_t now_ns);
/* One that was reached and refused: not again at once. */
void dial_later(struct cluster *cluster, const char *name);

/* ---- incoming.c ---- */
void incoming_accept(struct cluster *cluster, int tcp);
void incoming_close_all(struct cluster *cluster);
void incoming_leave_child(const struct cluster *cluster);

/* ---- route.c ---- */
/* A channel that another host (or this one) has opened goes to whom it is for; the welcome is said here.
 * Takes `fd`. */
must_check int route_channel(struct cluster *cluster, int fd, const Pbeam__ChannelHello *hello,
			     const char *address, struct err *err);
int handle_channel(struct connection *connection, const ProtobufCMessage *message, struct err *err);
int handle_expect(struct connection *connection, const ProtobufCMessage *message, struct err *err);

#endif
