/* Internals of a bridge: its streams, channels and loop. bridge.h explains them. */
#ifndef SCIP_BRIDGE_STREAM_H
#define SCIP_BRIDGE_STREAM_H

#include <sys/socket.h>

#include "proto/frame.h"
#include "scip/bridge/bridge.h"

enum {
	BRIDGE_PIECE = 64 << 10,   /* most bytes in a record of a stream */
	BRIDGE_MESSAGE = 16 << 20, /* most bytes in a message */
	BRIDGE_OUT_MAX = 64 << 10, /* bytes of attachments and acknowledgements that wait for a channel */
};

/* The target of epoll's data pointer. */
enum watch_kind { WATCH_LINE, WATCH_CHANNEL, WATCH_CONTROL, WATCH_LISTENER, WATCH_EXPECTING };
struct watch {
	enum watch_kind kind;
	void *owner;
};

/* A record that we send, as its frame. */
struct record {
	struct record *next;
	uint64_t number;
	size_t weight; /* its share of the window */
	size_t len;
	uint8_t *frame;
};
/* A received record that is not delivered yet. */
struct arrival {
	struct arrival *next;
	Pbeam__BridgeRecord *record;
};

/* At a UDP port's float: the socket that stands for one sender to the port's old address. */
struct stand_in {
	struct stand_in *next;
	int fd;
	uint64_t used;			    /* sequence number of its last use */
	union name_sockaddr source, called; /* its real address, and the one the program sees */
	bool named;
	bool passing; /* its sender gets direct replies */
};

struct bridge_stream {
	struct bridge_stream *next;
	struct bridge *bridge;
	struct watch watch;
	struct channel *channel; /* NULL: none at the moment */
	Pbeam__BridgeStream *about;
	uint64_t id, ino, skip;
	int fd;
	bool anchor;
	bool socket;			/* fd is a socket, not a pipe */
	bool reads, writes;		/* directions of fd that are open */
	bool readable, writable;	/* as far as we know */
	bool closing;			/* CLOSE or RESET was sent: no record follows */
	bool over;			/* only the acknowledgement of the log is due */
	bool held;			/* stopped by a coordinator */
	bool moved;			/* belongs to another bridge now, which acknowledges */
	bool taken;			/* a coordinator has its state */
	const struct control *holder;	/* the coordinator that holds it */
	bool fresh;			/* the program has not accepted it yet, as far as we know */
	bool ended;			/* we have sent END */
	bool attaching;			/* the anchor has not replied yet: nothing is sent */
	uint32_t generation;		/* number of moves of the program with it */
	unsigned turn;			/* value of bridge->turn when it last sent */
	bool named;			/* the name table has the address of the caller */
	const struct bridge_stream *of; /* its listener */
	uint64_t opened;		/* anchor: number of the listener's record that announces it */
	uint64_t lost_ns;		/* since when there is no channel */
	uint64_t made_ns;
	uint64_t called_ns; /* listener: time of the last connection */
	struct stand_in *stand_ins;
	struct stream_terminal *terminal; /* bridge_terminal.c; NULL: none, or not started */
	struct pty_bytes typed;		  /* anchor: dumped with the program */
	struct control *waiter;		  /* waits until nothing is in flight */
	uint64_t stand_ins_used;

	struct record *head, *tail, *unsent;
	uint64_t next_number;
	size_t weight;

	struct arrival *first, *last;
	uint64_t expected;  /* number of the next record */
	uint64_t delivered; /* records below it are delivered */
	uint64_t acked;	    /* records below it are acknowledged */
	uint64_t partial;   /* bytes of `first` that are written */
	size_t waiting;	    /* bytes in `first` and after it */
};

/* A channel to another bridge. */
struct channel {
	struct channel *next;
	struct bridge *bridge;
	struct watch watch;
	int sock;
	uint8_t cookie[BRIDGE_COOKIE]; /* the anchor's, at the float */
	char host[64];
	bool ours; /* we made it, and make it again when it is lost */
	bool writable;
	uint64_t retry_ns, lost_ns;
	struct frame_reader reader;
	uint8_t *out; /* the frame being sent */
	size_t out_len, out_done;
	uint8_t *control; /* frames sent before records */
	size_t control_len;
};

/* A coordinator. */
struct control {
	struct control *next;
	struct bridge *bridge;
	struct watch watch;
	int sock;
	bool dead;
	struct frame_reader reader;
};

struct bridge {
	uint8_t cookie[BRIDGE_COOKIE];
	char path[4096];
	struct names *names; /* or NULL */
	int epoll, listener, expecting;
	struct watch listener_watch, expecting_watch;
	struct bridge_stream *streams;
	struct channel *channels;
	struct control *controls;
	uint64_t next_id;
	unsigned turn;
	bool started; /* in a coordinator, which has only a copy */
	bool changed; /* the text beside the socket must be written */
};

/* ---- bridge_stream.c: logs ---- */
struct bridge_stream *bridge_stream_new(struct bridge *bridge, const Pbeam__BridgeStream *about, int fd,
					bool anchor);
void bridge_stream_free_log(struct bridge_stream *stream);
/* Each anchor numbers its own streams, so a float finds a stream by channel and number. */
struct bridge_stream *bridge_stream_find(struct bridge *bridge, const struct channel *channel, uint64_t id);
/* Appends to the log. -ENOMEM. */
must_check int bridge_stream_append(struct bridge_stream *stream, Pbeam__BridgeRecord__Kind kind,
				    const void *data, size_t len, const struct sockaddr *from,
				    socklen_t from_len, const Pbeam__BridgeStream *opened);
/* The other side has delivered all records below `number`. */
void bridge_stream_acked(struct bridge_stream *stream, uint64_t number);
/* Sends the records from `number` on again. */
void bridge_stream_rewind(struct bridge_stream *stream, uint64_t number);
/* Takes a received record. 0, or -EPROTO for an unexpected one. */
must_check int bridge_stream_arrived(struct bridge_stream *stream, Pbeam__BridgeRecord *record);
void bridge_stream_drop_arrivals(struct bridge_stream *stream);
/* Returns the record in a frame of a received log; NULL if it is malformed. */
Pbeam__BridgeRecord *bridge_stream_record(const ProtobufCBinaryData *frame);
/* Appends a frame of the log that moved with the program. */
must_check int bridge_stream_append_frame(struct bridge_stream *stream, const uint8_t *frame, size_t len,
					  uint64_t number);
/* Forgets a stream that another bridge has now: sends no end. */
void bridge_stream_forget(struct bridge_stream *stream);
/* Ends the stream at once on this side. */
void bridge_stream_reset(struct bridge_stream *stream);
/* Returns the inode of one of our sockets. */
uint64_t bridge_stream_socket_ino(int fd);
/* True if nothing is left to do for the stream. */
bool bridge_stream_finished(const struct bridge_stream *stream);
/* Returns the stream's state for another host; NULL without memory. */
Pbeam__BridgeStream *bridge_stream_describe(const struct bridge_stream *stream, bool whole);

/* ---- bridge_pump.c: between the descriptor and the logs ---- */
/* Moves as much as possible in both directions. */
void bridge_stream_pump(struct bridge_stream *stream);
/* Reads everything from the descriptor, beyond the window: for a stream that moves. */
void bridge_stream_drain(struct bridge_stream *stream);
/* Polls whether the program has closed its end; there is no event for it. */
void bridge_stream_look(struct bridge_stream *stream);
/* True if the stream needs bridge_stream_look(). */
bool bridge_stream_wants_look(const struct bridge_stream *stream);

/* ---- bridge_accept.c: listeners ---- */
/* At the anchor: turns connections from outside into streams. */
void listener_accept(struct bridge_stream *stream);
/* At the float: connects a stream that the anchor has opened to the program. False: not yet, the program's
 * backlog is full. */
bool listener_connect(struct bridge_stream *listener, const Pbeam__BridgeStream *opened);
/* Removes the caller from the name table. */
void listener_forget(struct bridge_stream *stream);
/* True once the program has accepted the stream. */
bool listener_accepted(struct bridge_stream *stream);

/* ---- bridge_port.c: UDP ports with many callers, the float's side ---- */
bool bridge_stream_is_port(const struct bridge_stream *stream);
/* Sends to the program from the stand-in of `from`. As sendmsg(), with -errno. */
ssize_t port_send(struct bridge_stream *stream, const void *data, size_t len,
		  const ProtobufCBinaryData *from);
/* Reads what the program has sent to a stand-in. Returns the bytes, or -EAGAIN. */
ssize_t port_take(struct bridge_stream *stream, void *data, size_t room, struct sockaddr_storage *to,
		  socklen_t *to_len);
must_check int port_watch(struct bridge_stream *stream);
bool port_has(const struct bridge_stream *stream, int fd);
void port_free(struct bridge_stream *stream);

/* ---- bridge_terminal.c: pseudo-terminals ---- */
bool bridge_stream_is_terminal(const struct bridge_stream *stream);
/* Starts the terminal when the bridge runs. -ENOMEM. */
must_check int terminal_begin(struct bridge_stream *stream);
/* At an anchor that has not started: sends what was typed since the program was dumped. 0 or -errno. */
must_check int terminal_depart(struct bridge_stream *stream);
/* Restores the program's settings before the stream ends. */
void terminal_end(struct bridge_stream *stream);
/* Sends changed settings to the other side. True if any had changed. */
bool terminal_look(struct bridge_stream *stream);
/* Applies the other side's settings. */
void terminal_apply(struct bridge_stream *stream, const Pbeam__BridgeRecord *record);
/* True if a read's `result`, 0 or -errno, is the terminal's end. */
bool terminal_ended(struct bridge_stream *stream, ssize_t result);

/* ---- bridge_channel.c ---- */
struct channel *channel_add(struct bridge *bridge, int sock);
void channel_free(struct channel *channel);
/* At the float: gives the stream the channel to its anchor, which is opened if there is none. */
void channel_for(struct bridge_stream *stream);
void channel_retry(struct channel *channel);
void channel_attach(struct bridge_stream *stream);
void channel_acknowledge(struct bridge_stream *stream);
void channel_output(struct channel *channel);
void channel_input(struct channel *channel);

/* ---- bridge_control.c ---- */
void control_accept(struct bridge *bridge);
void control_input(struct control *control);
void control_free(struct control *control);
/* Replies to the stream's waiter once nothing is in flight. */
void control_settled(struct bridge_stream *stream);
/* RUNTIME/bridge/COOKIE; `buf` of 4096 bytes. */
must_check int control_path(const uint8_t *cookie, char *buf, struct err *err);
void control_describe(struct bridge *bridge);

/* ---- bridge.c ---- */
/* In a child: closes all descriptors but `back` and the log. */
void bridge_close_all_but(int back);
must_check int bridge_watch(struct bridge *bridge, int fd, struct watch *watch, uint32_t events);

#endif
