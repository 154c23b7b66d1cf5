#include "scip/job/link_news.h"

#include <errno.h>
#include <sys/socket.h>

#include "proto/message.h"

enum { NEWS_MAX = 64 }; /* bytes of a packed LinkNews: five numbers */

int link_news_send(int sock, const struct link_news *news, int flags)
{
	Pbeam__LinkNews message = PBEAM__LINK_NEWS__INIT;
	uint8_t bytes[NEWS_MAX];

	message.type = news->type;
	message.vpid = news->vpid;
	message.value = news->value;
	message.from = news->from;
	message.stub = news->stub;
	if (send(sock, bytes, pbeam__link_news__pack(&message, bytes), MSG_NOSIGNAL | flags) < 0)
		return -errno;
	return 0;
}

int link_news_receive(int sock, struct link_news *news, int flags)
{
	uint8_t bytes[NEWS_MAX];
	ssize_t n = recv(sock, bytes, sizeof(bytes), flags);
	Pbeam__LinkNews *message;

	if (n <= 0)
		return n < 0 ? -errno : 0;
	message = pbeam__link_news__unpack(NULL, (size_t)n, bytes);
	if (!message)
		return -EPROTO;
	*news = (struct link_news){message->type, message->vpid, message->value, message->from,
				   message->stub};
	message_free(message);
	return 1;
}
