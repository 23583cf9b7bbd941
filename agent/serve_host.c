/* Names of this server. A page of another site can make its own name point to 127.0.0.1 and have a browser
 * read what is served here (DNS rebinding); such a request still names that site in its Host header. So a
 * request is answered only if it names an address that the server listens at, which no name server can
 * change, or a name that the user gave. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "agent/serve.h"

#define NAME_BYTES 256 /* a name of the DNS has at most 253 */

/* Splits "HOST", "HOST:PORT", "[HOST]" and "[HOST]:PORT" in place; *port is NULL where there is none. */
bool rp__serve_split_host(char *text, char **host, char **port) {
  char *colon = strrchr(text, ':'), *closing = strrchr(text, ']');
  if (closing && colon && colon < closing) colon = NULL; /* inside of an IPv6 address */
  *port = colon ? colon + 1 : NULL;
  *host = text;
  if (colon) *colon = '\0';
  size_t length = strlen(text);
  if (text[0] == '[' && length > 1 && text[length - 1] == ']') {
    text[length - 1] = '\0';
    *host = text + 1;
  } else if (strchr(text, ':') || strpbrk(text, "[]")) {
    return false; /* an IPv6 address needs its brackets */
  }
  return **host && (!colon || strspn(*port, "0123456789") == strlen(*port));
}

/* As an IPv6 address, IPv4 mapped into it. */
static bool parse_address(const char *text, struct in6_addr *out) {
  char mapped[INET6_ADDRSTRLEN + 8];
  struct in_addr four;
  if (inet_pton(AF_INET6, text, out) == 1) return true;
  if (inet_pton(AF_INET, text, &four) != 1) return false;
  snprintf(mapped, sizeof mapped, "::ffff:%s", text);
  return inet_pton(AF_INET6, mapped, out) == 1;
}

static struct in6_addr address_of(const struct sockaddr *address) {
  char text[INET6_ADDRSTRLEN] = "";
  struct in6_addr out = in6addr_any;
  if (address->sa_family == AF_INET6) return ((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
  (void)inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr, text, sizeof text);
  (void)parse_address(text, &out);
  return out;
}

static bool is_mapped(const struct in6_addr *address) {
  return IN6_IS_ADDR_V4MAPPED(address);
}

static bool is_loopback(const struct in6_addr *address) {
  return IN6_IS_ADDR_LOOPBACK(address) || (is_mapped(address) && address->s6_addr[12] == 127);
}

static bool is_any(const struct in6_addr *address) {
  static const uint8_t four_zeros[4];
  return IN6_IS_ADDR_UNSPECIFIED(address) ||
         (is_mapped(address) && memcmp(address->s6_addr + 12, four_zeros, sizeof four_zeros) == 0);
}

bool rp__serve_is_local(const struct sockaddr *address) {
  struct in6_addr own = address_of(address);
  return is_loopback(&own);
}

/* Two ways to write one name or address. */
static bool is_same_host(const char *a, const char *b) {
  struct in6_addr x, y;
  bool a_is_address = parse_address(a, &x), b_is_address = parse_address(b, &y);
  if (a_is_address || b_is_address) return a_is_address && b_is_address && memcmp(&x, &y, sizeof x) == 0;
  size_t length = strlen(a), other = strlen(b);
  length -= length && a[length - 1] == '.'; /* "name." is "name" */
  other -= other && b[other - 1] == '.';
  return length == other && strncasecmp(a, b, length) == 0;
}

bool rp__serve_is_host_name(const char *name) {
  static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  char copy[NAME_BYTES], *host, *port;
  struct in6_addr address;
  if (parse_address(name, &address)) return true;
  if (snprintf(copy, sizeof copy, "%s", name) >= (int)sizeof copy) return false;
  if (!rp__serve_split_host(copy, &host, &port) || port) return false;
  return parse_address(host, &address) || host[strspn(host, allowed)] == '\0';
}

/* Where it listens at every address, each of them is its own, and a mapped port can give it more. */
static bool is_own_address(const char *host, const struct sockaddr *bound) {
  struct in6_addr asked, own = address_of(bound);
  if (!parse_address(host, &asked)) return false;
  return is_loopback(&asked) || is_any(&own) || memcmp(&asked, &own, sizeof own) == 0;
}

static bool is_named(const char *host, const char *given) {
  char copy[NAME_BYTES], *name, *port;
  if (is_same_host(host, given)) return true; /* an IPv6 address without brackets */
  return snprintf(copy, sizeof copy, "%s", given) < (int)sizeof copy &&
         rp__serve_split_host(copy, &name, &port) && is_same_host(host, name);
}

bool rp__serve_host_is_ours(const struct rp_serve_options *options, const struct sockaddr *bound,
                            const char *header) {
  char copy[NAME_BYTES + 16], *host, *port;
  if (snprintf(copy, sizeof copy, "%s", header) >= (int)sizeof copy) return false;
  if (!rp__serve_split_host(copy, &host, &port)) return false;
  if (is_same_host(host, "localhost") || is_own_address(host, bound)) return true;
  if (is_named(host, options->listen)) return true; /* the name that it was told to listen at */
  for (size_t i = 0; i < options->host_name_count; i++)
    if (is_named(host, options->host_names[i])) return true;
  return false;
}
