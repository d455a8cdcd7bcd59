# Enqueue, stream and acknowledge with mysql2: ruby orders.rb HOST PORT USER PASSWORD DATABASE
require "mysql2"

$stdout.sync = true
host, port, user, password, database = ARGV

# read_timeout is off by default, and must stay off: an idle stream is silent.
connect = lambda do
  Mysql2::Client.new(host: host, port: port.to_i, username: user, password: password, database: database)
end
# A stream keeps its connection busy, so everything else uses another one.
streaming = connect.call
working = connect.call

insert = working.prepare("INSERT INTO orders (item) VALUES (?)")
ack = working.prepare("ACK FROM orders WHERE id = ?")
poll = working.prepare("STREAM id, item FROM orders LIMIT ? WAIT ?")

acknowledge_prepared = lambda do |order, how|
  ack.execute(order)
  puts "acknowledged #{order}, #{how}: #{ack.affected_rows}"
end
acknowledge_as_text = lambda do |order, how|
  working.query("ACK FROM orders WHERE id = #{order}")
  puts "acknowledged #{order}, #{how}: #{working.affected_rows}"
end

# Enqueueing is an INSERT in a transaction of your own.
working.query("BEGIN")
%w[tea bread].each { |item| insert.execute(item) }
working.query("COMMIT")
puts "enqueued tea, bread"

working.query("BEGIN")
insert.execute("milk")
working.query("ROLLBACK")
puts "rolled back milk"

# stream: true returns each row as it comes; without it, query waits for the end of the result.
first = nil
streaming.query("STREAM id, item FROM orders LIMIT 3", stream: true, cache_rows: false).each do |row|
  order, item = row.values_at("id", "item")
  puts "received #{order} #{item}"
  if item == "bread"
    acknowledge_prepared.call(order, "prepared")
    insert.execute("jam") # reaches the open stream at once
    puts "enqueued jam"
  else
    acknowledge_as_text.call(order, "text")
  end
  first ||= order
end
streaming.close

acknowledge_prepared.call(first, "again")

begin
  working.query("STREAM * FROM customers")
rescue Mysql2::Error => error
  puts "refused #{error.error_number}: #{error.message}"
end

# A long poll is an ordinary result. The work and its acknowledgement are one transaction.
# Commit work only if its ACK, with AND epoch = n, affected the message: docs/recipes.md shows why.
insert.execute("salt")
puts "enqueued salt"
working.query("BEGIN")
poll.execute(1, 20).to_a.each do |row|
  puts "received #{row["id"]} #{row["item"]}"
  acknowledge_prepared.call(row["id"], "in the transaction")
end
working.query("COMMIT")

puts "nothing came" if poll.execute(1, 0.5).to_a.empty?
working.close
