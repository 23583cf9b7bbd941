/* Sorted array of disjoint ranges: binary search to read, memmove to change. */
#include "pool/address_map.h"

#include <stdlib.h>
#include <string.h>

/* Index of the first range that ends after `address`. */
static size_t first_ending_after(const struct rp_address_map *map, uint64_t address) {
  size_t low = 0, high = map->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (map->ranges[middle].end > address)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

struct rp_range *rp_address_map_find(const struct rp_address_map *map, uint64_t address) {
  size_t i = first_ending_after(map, address);
  return i < map->count && map->ranges[i].begin <= address ? &map->ranges[i] : NULL;
}

struct rp_range *rp_address_map_overlap(const struct rp_address_map *map, uint64_t begin, uint64_t end) {
  size_t i = first_ending_after(map, begin);
  return begin < end && i < map->count && map->ranges[i].begin < end ? &map->ranges[i] : NULL;
}

rp_status rp_address_map_add(struct rp_address_map *map, uint64_t begin, uint64_t end, uint64_t value) {
  if (end <= begin) return RP_ERROR_INVALID;
  size_t at = first_ending_after(map, begin);
  if (at < map->count && map->ranges[at].begin < end) return RP_ERROR_EXISTS;
  if (map->count == map->capacity) {
    size_t capacity = map->capacity ? 2 * map->capacity : 64;
    struct rp_range *grown = realloc(map->ranges, capacity * sizeof *grown);
    if (!grown) return RP_ERROR_NO_MEMORY;
    map->ranges = grown;
    map->capacity = capacity;
  }
  memmove(&map->ranges[at + 1], &map->ranges[at], (map->count - at) * sizeof *map->ranges);
  map->ranges[at] = (struct rp_range){begin, end, value};
  map->count++;
  return RP_OK;
}

rp_status rp_address_map_remove(struct rp_address_map *map, uint64_t begin, struct rp_range *out) {
  size_t at = first_ending_after(map, begin);
  if (at == map->count || map->ranges[at].begin != begin) return RP_ERROR_NOT_FOUND;
  if (out) *out = map->ranges[at];
  map->count--;
  memmove(&map->ranges[at], &map->ranges[at + 1], (map->count - at) * sizeof *map->ranges);
  return RP_OK;
}

void rp_address_map_fini(struct rp_address_map *map) {
  free(map->ranges);
  *map = (struct rp_address_map){0};
}
