// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: 2026 The Headwise authors
#pragma once

#include <headwise/collective/all_to_all.hpp>
#include <headwise/collective/pooled.cuh>
#include <headwise/collective/router_text.hpp>
#include <headwise/executor/cuda_executor.cuh>

// A peer pool and a transport behind one set of verbs. An engine writes one line per layer, and
// each call goes over the pool where that takes it, over the transport where it does not.

namespace headwise::inline v0 {

/// Equal on all ranks.
struct router_options {
  /// Tokens of a call up to which it goes over the pool.
  index_t token_cap = INT64_MAX;
  carrier_preference preference = carrier_preference::automatic;
};

/// One rank of a group that has a transport, and a peer pool where all ranks could open one.
///
///     router<nccl> ways(group);
///     const status opened = ways.open(bootstrap, pool_options, {.token_cap = 64});
///     ways.prepare(bootstrap, {"decode"});
///     const pool_channel decode = ways.channel("decode").value();
///     ...
///     ways.lse_reduce_scatter<log_base::e>(decode, stream, partial_output, partial_lse, output,
///                                          merged_lse, workspace);
///
/// Which way a call goes is route_pool() of what is equal on all ranks; no failure of one rank
/// changes it. A channel that has failed fails the calls that go over it, on each rank as soon as
/// it hears of it, until reset(); none of them goes over the transport instead, where its peers may
/// never come.
///
/// Ranks that share a GPU load the kernels of the transport's calls before the first call over the
/// pool (one call of each, or CUDA_MODULE_LOADING=EAGER): loaded later, they may wait for a kernel
/// that waits for this rank.
///
/// The transport outlives it. close() before it is destroyed, as a pool. Not copied and not moved.
/// What is collective blocks, comes to the same on all ranks, and is not for a capture.
template <transport Transport, peer_memory Memory = automatic_memory>
class router {
 public:
  explicit router(Transport& group) noexcept : group_(&group) {}
  router(Transport& group, const Memory& memory) noexcept : group_(&group), pool_(memory) {}
  router(const router&) = delete;
  router& operator=(const router&) = delete;

  int rank() const noexcept { return group_->rank(); }
  int size() const noexcept { return group_->size(); }

  /// Collective. Opens the pool and has the ranks vote: where it could not be opened on one of
  /// them, all go on without, and this is no failure; pool_status() says why.
  /// Errors: invalid_argument (open already; a cap below 0; `ranks` is not the transport's group),
  /// rank_mismatch (other options on another rank), those of `ranks`.
  status open(bootstrap_ref ranks, const pool_options& pool,
              const router_options& options = {}) noexcept {
    const auto checked = [&]() -> status {
      if (open_) return failure(errc::invalid_argument, "router", "is open already");
      if (group_->size() != ranks.size() || group_->rank() != ranks.rank()) {
        return failure(errc::invalid_argument, "ranks",
                       "those of the bootstrap (got) are not those of the transport (expected)",
                       ranks.size(), group_->size());
      }
      if (options.token_cap >= 0) return {};
      return failure(errc::invalid_argument, "token_cap", "must not be negative", options.token_cap,
                     0);
    };
    const status valid = detail::unanimous(ranks, checked(), "router");
    if (!valid.ok()) return valid;
    const call_signature terms{"router",
                               {{"token_cap", options.token_cap},
                                {"preference", static_cast<index_t>(options.preference)}}};
    detail::call_record records[max_ranks];
    const status told = detail::gather_each(ranks, detail::record_of(terms, {}), records);
    if (!told.ok()) return told;
    const status alike = detail::compare_records(records, ranks.size(), ranks.rank(), terms);
    if (!alike.ok()) return alike;
    terms_ = {ranks.size(), false, options.token_cap, options.preference};
    pool_status_ = {};
    open_ = true;
    if (options.preference == carrier_preference::transport) return {};
    const status mine = pool_.open(ranks, pool);
    detail::verdict_record votes[max_ranks];
    const status voted = detail::gather_each(ranks, detail::record_of(mine), votes);
    pool_status_ = voted.ok() ? detail::verdict_of(votes, ranks.size(), mine, "pool") : voted;
    terms_.open = pool_status_.ok();
    // No channel is left, so that a pool which opened on this rank alone waits for nobody here.
    if (mine.ok() && !terms_.open) static_cast<void>(pool_.close(ranks).ok());
    open_ = voted.ok();
    return voted;
  }

  /// Collective. Channels of these names, as peer_pool::prepare(); without a pool their names.
  /// Errors: those of peer_pool::prepare(); invalid_argument (not open).
  status prepare(bootstrap_ref ranks, std::initializer_list<const char*> names) noexcept {
    return prepare(ranks, std::span(names.begin(), names.size()));
  }
  status prepare(bootstrap_ref ranks, std::span<const char* const> names) noexcept {
    if (terms_.open) return pool_.prepare(ranks, names);
    const int before = named_;
    const status mine = take_names(names);
    const status taken = detail::unanimous(ranks, mine, "channels");
    if (!taken.ok()) named_ = before;
    return taken;
  }

  /// A prepared channel, by value; without a pool a handle that stands for none. Errors:
  /// invalid_argument.
  result<pool_channel> channel(const char* name) const noexcept {
    if (terms_.open) return pool_.channel(name);
    if (name != nullptr && has_name(name)) return pool_channel{};
    return failure(errc::invalid_argument, "channel",
                   "of this name is not prepared: call prepare() on all ranks, before any capture");
  }
  int channel_count() const noexcept { return terms_.open ? pool_.channel_count() : named_; }

  /// Collective. As peer_pool::roll_back(). Errors: its own.
  status roll_back(bootstrap_ref ranks, int channels) noexcept {
    if (terms_.open) return pool_.roll_back(ranks, channels);
    const status taken =
        detail::unanimous(ranks,
                          channels >= 0 && channels <= named_
                              ? status{}
                              : failure(errc::out_of_range, "channels",
                                        "there are no more than this", channels, named_),
                          "channels");
    if (taken.ok()) named_ = channels;
    return taken;
  }

  /// Collective. Makes channels that have failed usable again. Errors: those of peer_pool::reset().
  status reset(bootstrap_ref ranks) noexcept {
    return terms_.open ? pool_.reset(ranks) : detail::barrier(ranks);
  }

  /// Collective. Errors: those of peer_pool::close().
  status close(bootstrap_ref ranks) noexcept {
    const status closed = terms_.open ? pool_.close(ranks) : status{};
    if (!closed.ok()) return closed;
    terms_.open = open_ = false;
    named_ = 0;
    return {};
  }

  /// Whether calls may go over a pool; the same on all ranks.
  bool has_pool() const noexcept { return terms_.open; }
  /// Why there is no pool: this rank's failure, or that of the first rank that has one. ok where
  /// there is one, or none was asked for.
  const status& pool_status() const noexcept { return pool_status_; }
  const pool_terms& terms() const noexcept { return terms_; }
  peer_pool<Memory>& pool() noexcept { return pool_; }
  const peer_pool<Memory>& pool() const noexcept { return pool_; }
  Transport& group() const noexcept { return *group_; }

  // ---- which way --------------------------------------------------------------------------------

  /// Over what a call with elements T goes, `shape` being that of a message: the heads of one rank.
  /// What the verbs ask, and what a warm-up asks.
  template <class T>
  pool_route route(const pool_channel& channel, pool_operation operation,
                   const message_shape& shape) const noexcept {
    return route_rows(channel, operation, shape.tokens, sizeof(T), rows_of<T>(shape));
  }
  /// Whether the pool takes it.
  template <class T>
  bool supports(const pool_channel& channel, pool_operation operation,
                const message_shape& shape) const noexcept {
    return route<T>(channel, operation, shape).which == carrier::pool;
  }

  /// Bytes of workspace of a call: none over the pool. Errors: those of lse_reduce_scatter_bytes()
  /// and all_gather_heads_bytes().
  template <class T>
  result<index_t> workspace_bytes(const pool_channel& channel, pool_operation operation,
                                  const message_shape& shape,
                                  const message_format& format = {}) const noexcept {
    if (supports<T>(channel, operation, shape)) return index_t{0};
    return operation == pool_operation::reduce_scatter
               ? headwise::lse_reduce_scatter_bytes<T>(shape, format)
               : headwise::all_gather_heads_bytes<T>(shape);
  }

  // ---- the verbs --------------------------------------------------------------------------------

  /// headwise::lse_reduce_scatter() over the channel, or with kernels on the stream over the
  /// transport. `workspace` and `options` are those of a call over the transport.
  /// Errors: invalid_argument (a channel of another pool), those of either verb.
  template <log_base Base, class Partial, class Lse, class Result, class Merged = none_t,
            class Valid = none_t, class Sink = none_t, class Policy = nan_policy::empty>
  status lse_reduce_scatter(const pool_channel& channel, const on_stream& stream,
                            const Partial& partial_output, const Lse& partial_lse,
                            const Result& output, const Merged& merged_lse,
                            std::span<std::byte> workspace,
                            const reduce_scatter_options& options = {}, const Valid& valid = {},
                            const Sink& sink = {}, const Policy& policy = {}) const noexcept {
    using element = typename Partial::value_type;
    const pool_route way =
        route<element>(channel, pool_operation::reduce_scatter, shape_of(output));
    if (way.which == carrier::pool) {
      return headwise::lse_reduce_scatter<Base>(channel, stream, partial_output, partial_lse,
                                                output, merged_lse, valid, sink, policy);
    }
    const status mine = check_channel(channel);
    if (!mine.ok()) return mine;
    auto&& group = transport_on(stream);
    return headwise::lse_reduce_scatter<Base>(cuda_executor{stream}, group, partial_output,
                                              partial_lse, output, merged_lse, workspace, options,
                                              valid, sink, policy);
  }

  /// headwise::all_gather_heads(), in the same way. Elements that a pool does not move go over the
  /// transport.
  template <class Local, class Gathered>
  status all_gather_heads(const pool_channel& channel, const on_stream& stream, const Local& local,
                          const Gathered& gathered, std::span<std::byte> workspace,
                          const all_gather_options& options = {}) const noexcept {
    using element = typename Local::value_type;
    if constexpr (pool_moves(sizeof(element))) {
      const pool_route way = route<element>(channel, pool_operation::all_gather, shape_of(local));
      if (way.which == carrier::pool) {
        return headwise::all_gather_heads(channel, stream, local, gathered);
      }
    }
    const status mine = check_channel(channel);
    if (!mine.ok()) return mine;
    auto&& group = transport_on(stream);
    return headwise::all_gather_heads(cuda_executor{stream}, group, local, gathered, workspace,
                                      options);
  }

  /// Two gathers: one launch over the pool, one behind the other over the transport, which need the
  /// larger of their two workspaces.
  template <class Local, class Gathered, class SecondLocal, class SecondGathered>
  status all_gather_heads(const pool_channel& channel, const on_stream& stream, const Local& local,
                          const Gathered& gathered, const SecondLocal& second_local,
                          const SecondGathered& second_gathered, std::span<std::byte> workspace,
                          const all_gather_options& options = {}) const noexcept {
    using element = typename Local::value_type;
    using second_element = typename SecondLocal::value_type;
    if constexpr (pool_moves(sizeof(element)) && pool_moves(sizeof(second_element))) {
      const message_shape second = shape_of(second_local);
      const pool_route way = route_rows(
          channel, pool_operation::all_gather,
          detail::greater(local.template extent<axis::token>(), second.tokens), sizeof(element),
          rows_of<element>(shape_of(local)), rows_of<second_element>(second));
      if (way.which == carrier::pool) {
        return headwise::all_gather_heads(channel, stream, local, gathered, second_local,
                                          second_gathered);
      }
    }
    const status first = over_transport(channel, stream, local, gathered, workspace, options);
    return first.ok()
               ? over_transport(channel, stream, second_local, second_gathered, workspace, options)
               : first;
  }

  /// headwise::all_to_all(), always over the transport: a pool has no such operation.
  template <class Send, class Receive>
  status all_to_all(const on_stream& stream, const Send& send, const Receive& receive,
                    std::span<std::byte> workspace) const noexcept {
    auto&& group = transport_on(stream);
    return headwise::all_to_all(cuda_executor{stream}, group, send, receive, workspace);
  }

  // ---- in words ---------------------------------------------------------------------------------

  /// What lse_reduce_scatter() would do: over what and why, then what the verb there makes of it;
  /// as snprintf writes. Runs and waits for nothing.
  template <log_base Base, class Partial, class Lse, class Result, class Merged = none_t,
            class Valid = none_t, class Sink = none_t>
  std::size_t describe_lse_reduce_scatter(const pool_channel& channel,
                                          const Partial& partial_output, const Lse& partial_lse,
                                          const Result& output, const Merged& merged_lse,
                                          const reduce_scatter_options& options, char* buffer,
                                          std::size_t capacity, const Valid& valid = {},
                                          const Sink& sink = {}) const noexcept {
    using element = typename Partial::value_type;
    const message_shape shape = shape_of(output);
    const pool_route way = route<element>(channel, pool_operation::reduce_scatter, shape);
    detail::text_sink out{buffer, capacity};
    detail::put_router(out, {way, terms_, shape.tokens, pool_status_});
    if (way.which == carrier::transport) {
      return go_on(out, [&](char* rest, std::size_t room) {
        return headwise::describe_lse_reduce_scatter<Base>(cuda_executor{}, *group_, partial_output,
                                                           partial_lse, output, merged_lse, options,
                                                           rest, room, valid, sink);
      });
    }
    detail::put_call(out, "lse_reduce_scatter", detail::unnamed_group{}, shape);
    out.put(to_string(element_kind_of<element>));
    out.put(", base ");
    out.put(to_string(Base));
    put_pooled(out, channel, pool_operation::reduce_scatter,
               detail::check_reduce_scatter<Base>(size(), rank(), partial_output, partial_lse,
                                                  output, merged_lse, valid, sink),
               rows_of<element>(shape));
    return out.finish();
  }

  /// The same of all_gather_heads().
  template <class Local, class Gathered>
  std::size_t describe_all_gather_heads(const pool_channel& channel, const Local& local,
                                        const Gathered& gathered, const all_gather_options& options,
                                        char* buffer, std::size_t capacity) const noexcept {
    using element = typename Local::value_type;
    const message_shape shape = shape_of(local);
    const pool_route way = route<element>(channel, pool_operation::all_gather, shape);
    detail::text_sink out{buffer, capacity};
    detail::put_router(out, {way, terms_, shape.tokens, pool_status_});
    if (way.which == carrier::transport) {
      return go_on(out, [&](char* rest, std::size_t room) {
        return headwise::describe_all_gather_heads(cuda_executor{}, *group_, local, gathered,
                                                   options, rest, room);
      });
    }
    detail::put_call(out, "all_gather_heads", detail::unnamed_group{}, shape);
    detail::put_count(out, index_t{sizeof(element)}, "byte");
    out.put(" an element");
    put_pooled(out, channel, pool_operation::all_gather,
               detail::check_gather(size(), rank(), local, gathered), rows_of<element>(shape));
    return out.finish();
  }

 private:
  template <class View>
  message_shape shape_of(const View& rows) const noexcept {
    return {size(), rows.template extent<axis::token>(), rows.template extent<axis::head>(),
            rows.template extent<axis::head_dim>()};
  }

  /// The rows of one rank; more than any channel holds where they cannot be counted, which the verb
  /// then refuses.
  template <class T>
  static detail::pool_rows rows_of(const message_shape& shape) noexcept {
    const checked_size count = checked_size(shape.tokens) * shape.heads;
    const checked_size row = checked_size(shape.head_dim) * index_t{sizeof(T)};
    return (count * row).valid() ? detail::pool_rows{count.value(), row.value()}
                                 : detail::pool_rows{INT64_MAX, 1};
  }

  pool_route route_rows(const pool_channel& channel, pool_operation operation, index_t tokens,
                        index_t element_bytes, const detail::pool_rows& first,
                        const detail::pool_rows& second = {}) const noexcept {
    const auto has_room = [&] {
      const checked_size bytes = checked_size(first.count) * first.row_bytes +
                                 checked_size(second.count) * second.row_bytes;
      return bytes.valid() && channel.choose(operation, first, second).ok();
    };
    // A channel of another group is no reason for the transport: check_channel() refuses it.
    const bool room = terms_.open && channel.size() == size() && has_room();
    return route_pool(terms_, {tokens, element_bytes, true, room});
  }

  /// Where there is a pool, a call names one of its channels, whichever way it goes: what works
  /// with few tokens works with many. Errors: invalid_argument.
  status check_channel(const pool_channel& channel) const noexcept {
    if (!terms_.open || (channel.size() == size() && *channel.name() != '\0')) return {};
    return failure(errc::invalid_argument, "channel", "is not of this router's pool");
  }

  template <class Local, class Gathered>
  status over_transport(const pool_channel& channel, const on_stream& stream, const Local& local,
                        const Gathered& gathered, std::span<std::byte> workspace,
                        const all_gather_options& options) const noexcept {
    const status mine = check_channel(channel);
    if (!mine.ok()) return mine;
    auto&& group = transport_on(stream);
    return headwise::all_gather_heads(cuda_executor{stream}, group, local, gathered, workspace,
                                      options);
  }

  /// The transport, on the stream of the call: on another one its steps would not be in order.
  decltype(auto) transport_on([[maybe_unused]] const on_stream& stream) const noexcept {
    if constexpr (requires { group_->on(stream.stream); }) {
      return group_->on(stream.stream);
    } else {
      return static_cast<Transport&>(*group_);
    }
  }

  bool has_name(const char* name) const noexcept {
    for (int i = 0; i < named_; ++i) {
      if (names_[i] == detail::hash_of(name)) return true;
    }
    return false;
  }
  /// What a pool would refuse is refused without one.
  status take_names(std::span<const char* const> names) noexcept {
    if (!open_) return failure(errc::invalid_argument, "router", "is not open");
    for (const char* const name : names) {
      if (name == nullptr || *name == '\0' || std::strlen(name) >= detail::most_channel_name) {
        return failure(errc::invalid_argument, "name", "has from 1 to 47 characters");
      }
      if (has_name(name)) {
        return failure(errc::invalid_argument, "name", "a channel of this name was prepared");
      }
      if (named_ == peer_pool<Memory>::max_channels) {
        return failure(errc::capacity_exceeded, "channels", "more than a pool has", named_ + 1,
                       peer_pool<Memory>::max_channels);
      }
      names_[named_++] = detail::hash_of(name);
    }
    return {};
  }

  /// Text behind what stands there already.
  template <class Write>
  static std::size_t go_on(detail::text_sink& out, const Write& write) noexcept {
    const std::size_t before = out.finish();
    const bool room = before < out.capacity;
    return before + write(room ? out.data + before : nullptr, room ? out.capacity - before : 0);
  }

  void put_pooled(detail::text_sink& out, const pool_channel& channel, pool_operation operation,
                  const status& operands, const detail::pool_rows& rows) const noexcept {
    status can = operands;
    if (can.ok()) can = channel.state();
    const result<protocol> chosen = channel.choose(operation, rows);
    if (can.ok()) can = chosen.why();
    if (!can.ok()) {
      detail::put_refusal(out, can);
      return;
    }
    detail::pooled_facts facts;
    facts.which = chosen.value();
    facts.first = rows;
    facts.lses = operation == pool_operation::reduce_scatter;
    facts.blocks = channel.blocks();
    facts.channel = channel.name();
    facts.kind = pool_.memory().kind();
    facts.reason = pool_.memory().reason();
    detail::put_pooled(out, facts);
  }

  Transport* group_;
  peer_pool<Memory> pool_{};
  pool_terms terms_{};
  status pool_status_{};
  bool open_ = false;
  // Of channels, where there is no pool.
  int named_ = 0;
  std::uint64_t names_[peer_pool<Memory>::max_channels] = {};
};

}  // namespace headwise::inline v0
